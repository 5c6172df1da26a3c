"""What a process takes of memory where the weights are divided among several (`training.sharding=fsdp`).

`training.sharding`: the peak of the process that leads during training steps of one whole model, over what it held
before the model was read, with two processes against one; `training.sharding.4` in the same way with four. In it are
its part of the weights, of the gradients and of AdamW's moments, the layers that are gathered for a moment, and the
activations of its micro-batches. The model has 31 million parameters in eight blocks; gloo processes on the CPU stand
for GPUs. Freed memory goes back at once, as in `training.memory`.
"""

from __future__ import annotations

import os
import subprocess
import sys

from benchmarks.bench_training_memory import WHAT_IS_HELD
from benchmarks.run import Result
from benchmarks.sma_cross import ONE_THREAD, ROOT

MOST = {2: 0.7, 4: 0.5}  # a half and a quarter, and the gathered layers and activations

CHILD = """
import sys, tempfile
from dataclasses import replace
from pathlib import Path
import numpy as np
import torch
from backend.config.training import TrainingConfig
from backend.policies.build import role_policies
from backend.policies.hardware import hardware_of
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.data_parallel import gradient_pool
from backend.training.learning.role_trainer import RoleTrainer
from cryptosentinel.llm.nano import nano_config, new_nano, save_model, train_tokenizer
from tests.standard_settings import trainer_settings

def field(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(name))

def measure():
    processes = int(sys.argv[1])
    torch.set_num_threads(1)
    training = TrainingConfig(
        weights="full", device="cpu", data_parallel=processes, sharding="none" if processes == 1 else "fsdp"
    )
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        shape = nano_config(1024, hidden_size=512, layers=8, heads=8, kv_heads=4, intermediate_size=1536)
        save_model(base, new_nano(0, shape), train_tokenizer(["a text of a few words"], 300))
        rng = np.random.default_rng(0)
        mask = np.arange(64) >= 40
        batch = [
            Trajectory(
                role="trader", query=str(number), rollout=0, ordinal=0, ids=rng.integers(0, 300, 64).astype(np.int32),
                mask=mask.copy(), sampled_logps=np.where(mask, -1.0, 0.0).astype(np.float32), policy_version="v",
                valid=True, format_score=1.0, expert=None, truncated=False,
            )
            for number in range(16)
        ]
        before = field("VmRSS")
        with gradient_pool(base, training, ["trader"]) as pool:
            hardware = replace(hardware_of(training), shards=pool.shards)
            policies, _ = role_policies(base, training, roles=["trader"], hardware=hardware)
            trainer = RoleTrainer(policies, "trader", trainer_settings(micro_batch_tokens=256), pool)
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            for _ in range(2):
                trainer.step(batch, rng.normal(size=16), np.full(16, 0.25))
            print(field("VmHWM") - before)

if __name__ == "__main__":
    measure()
"""


def run() -> list[Result]:
    """The rows `training.sharding` and `training.sharding.4`, in MB."""
    alone = _peak(1)
    rows: list[Result] = []
    for processes, most in MOST.items():
        peak = _peak(processes)
        rows.append(
            {
                "name": "training.sharding" if processes == 2 else f"training.sharding.{processes}",
                "value": peak,
                "unit": "MB",
                "against": f"one process, {alone:.0f} MB: a step of a whole model of 31 million parameters with AdamW",
                "ratio": peak / alone,
                "target": f"<= {most}",
                "met": peak <= most * alone,
            }
        )
    return rows


def _peak(processes: int) -> float:
    """MB that the process that leads takes at its peak."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(processes)], cwd=ROOT,
        env=os.environ | ONE_THREAD | WHAT_IS_HELD, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return float(done.stdout.split()[-1])
