"""Whether a role's training step takes more memory when the role is called more often, on one thread.

`training.memory`: how far memory rises in a step of a role with 16 calls a rollout, against one call, and in the same
way `training.memory.4` with 4 calls. Each is the peak of a process of its own during the step over what it held before:
model, optimizer and trajectories are there already, so what the trajectories themselves take is not in it. All calls
are equally long and have nothing in common, so that no pass is made smaller by what is shared, and one call a rollout
fills a micro-batch already: with fewer tokens than that a step takes less.

Blocks of 128 KiB and more go back to the system as soon as they are freed (MALLOC_MMAP_THRESHOLD_), so that it is what
the step holds that is measured. By default the C library's heap keeps such blocks, which is faster, and what it keeps
between those in use differs from run to run.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys

from benchmarks.run import Result
from benchmarks.sma_cross import ONE_THREAD, ROOT

REPETITIONS = 5
CALLS = (1, 4, 16)
ROLLOUTS, TOKENS, SAMPLED = 32, 160, 60
WHAT_IS_HELD = {"MALLOC_MMAP_THRESHOLD_": str(2**17)}
MOST = 1.1

CHILD = """
import sys
from pathlib import Path
import numpy as np
import torch
from backend.policies.role_policies import RolePolicies
from backend.training.learning.role_trainer import RoleTrainer
from tests.standard_settings import trainer_settings
from backend.training.algorithm.trajectory import Trajectory
from cryptosentinel.llm.nano import nano_config, new_nano

def field(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))

calls, rollouts, tokens, sampled = map(int, sys.argv[1:])
torch.set_num_threads(1)
rng = np.random.default_rng(0)
mask = np.arange(tokens) >= tokens - sampled
batch = [
    Trajectory(
        role="trader", query=str(rollout // 8), rollout=rollout % 8, ordinal=call,
        ids=rng.integers(0, 1024, tokens).astype(np.int32), mask=mask.copy(),
        sampled_logps=np.where(mask, -1.0, 0.0).astype(np.float32), policy_version="v", valid=True,
        format_score=1.0, expert=None, truncated=False,
    )
    for rollout in range(rollouts) for call in range(calls)
]
advantages, weights = rng.normal(size=len(batch)), np.full(len(batch), 1.0 / (8 * calls))
settings = trainer_settings(minibatches=2, micro_batch_tokens=1280)
trainer = RoleTrainer(RolePolicies(new_nano(0, nano_config(1024)), ["trader"]), "trader", settings)
before = field("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
trainer.step(batch, advantages, weights)
print(field("VmHWM") - before)
"""


def run() -> list[Result]:
    """The rows `training.memory` and `training.memory.4`, in MB."""
    megabytes = {calls: statistics.median(_rise(calls) for _ in range(REPETITIONS)) for calls in CALLS}
    once = megabytes[1]
    return [
        Result(
            name=name,
            value=megabytes[calls],
            unit="MB",
            against=f"1 call a rollout: {once:.1f} MB; {ROLLOUTS} rollouts, {calls} calls of {TOKENS} tokens in each",
            ratio=megabytes[calls] / once,
            target=f"<= {MOST}",
            met=megabytes[calls] <= MOST * once,
        )
        for name, calls in (("training.memory", 16), ("training.memory.4", 4))
    ]


def _rise(calls: int) -> float:
    """MB that a step with so many calls a rollout takes at its peak, over what was there before it."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(calls), str(ROLLOUTS), str(TOKENS), str(SAMPLED)], cwd=ROOT,
        env=os.environ | ONE_THREAD | WHAT_IS_HELD, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(done.stdout)
