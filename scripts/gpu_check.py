"""Everything that only a GPU can tell, in 13 minutes at most: `python -m scripts.gpu_check [--rehearse] [PART ...]`.

A GPU is at hand only now and then. Each part runs in a process of its own on a clock of its own, and its result is
appended to the file of `--out` (JSON lines, synced) as it ends; a part that fails or runs over does not stop the rest.

| part | result |
| --- | --- |
| tests | the tests of the GPU paths |
| quantized | one step with an NF4 base and `adamw8bit`, beside bfloat16 and AdamW |
| mfu | a training step's share of the card's peak, and its memory beside the estimate |
| trl | a whole GRPO step beside TRL's |
| vllm | a vLLM server with hot-swapped adapters of four roles |
| learning | SmolLM2 through `sft` and six steps of M-GRPO, and the value of its decisions on 256 unseen states |

CRYPTOSENTINEL_SMOLLM2 is the folder of that model (`python -m scripts.smollm2 FOLDER` makes it); vLLM is looked for in
`.venv-vllm`. `--rehearse` runs what a CPU can, with tiny sizes, in less than a minute on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SMOLLM2 = "CRYPTOSENTINEL_SMOLLM2"
VLLM = ROOT / ".venv-vllm" / "bin" / "python"
OUT = Path("gpu_check.jsonl")
LONGEST = 780  # seconds of all parts together
NEEDS_A_GPU = "needs a GPU"
_MOST_OUTPUT = 2000  # characters of a failed part's output that are kept
_RESULT = "gpu_check result: "  # before the line with a part's result


class NeedsMoreError(Exception):
    """What a part needs and this machine lacks."""


@dataclass(frozen=True)
class Part:
    """A part, the seconds that it may take, and whether a CPU can rehearse it."""

    name: str
    seconds: int
    run: Callable[[bool], dict[str, Any]]
    on_a_cpu: bool = False


def main(arguments: Sequence[str]) -> int:
    """The exit code is 1 where a part failed, 2 where there is no such part."""
    parser = argparse.ArgumentParser(prog="python -m scripts.gpu_check", description="What only a GPU can tell.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: {', '.join(PARTS)}")
    parser.add_argument("--rehearse", action="store_true", help="what a CPU can, with tiny sizes")
    parser.add_argument("--out", type=Path, default=OUT, help=f"file of the results; default: {OUT}")
    parser.add_argument("--within", metavar="PART", help=argparse.SUPPRESS)  # in the process of a part
    given = parser.parse_args(arguments)
    if given.within:
        return _within(PARTS[given.within], given.rehearse)
    unknown = [name for name in given.parts if name not in PARTS]
    if unknown:
        print(f"there is no part {unknown[0]}: there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    failed = 0
    for name in given.parts or PARTS:
        result = run_part(PARTS[name], given.rehearse)
        append(given.out, result)
        print(json.dumps(result), flush=True)
        failed += result["status"] in ("failed", "ran over")
    return 1 if failed else 0


def run_part(part: Part, rehearse: bool) -> dict[str, Any]:
    """The result of a part from its own process: `status` is ok, failed, ran over, or what it needs."""
    command = [sys.executable, "-m", "scripts.gpu_check", "--within", part.name, *(["--rehearse"] if rehearse else [])]
    began = time.monotonic()
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=part.seconds)
        found = _result_in(output, process.returncode)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with the servers and helpers that it started
        output, _ = process.communicate()
        over = {"status": "ran over", "limit_s": part.seconds, "output": output[-_MOST_OUTPUT:]}
        found = _result_in(output, 0) if _RESULT in output else over  # one that was slow to end has its result
    seconds = round(time.monotonic() - began, 1)
    return {"part": part.name, "rehearsal": rehearse, "seconds": seconds, **found}


def append(path: Path, result: dict[str, Any]) -> None:
    """Add a line to the file, and see that it is on the disk."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(result) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _result_in(output: str, code: int) -> dict[str, Any]:
    lines = [line for line in output.splitlines() if line.startswith(_RESULT)]
    if code == 0 and lines:
        found: dict[str, Any] = json.loads(lines[-1].removeprefix(_RESULT))
        return found
    return {"status": "failed", "exit_code": code, "output": output[-_MOST_OUTPUT:]}


def _within(part: Part, rehearse: bool) -> int:
    """Run a part in this process and print its result."""
    import torch

    try:
        if not torch.cuda.is_available() and not (rehearse and part.on_a_cpu):
            raise NeedsMoreError(NEEDS_A_GPU)
        card = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        result = {"status": "ok", "device": card, **part.run(rehearse)}
    except NeedsMoreError as needed:
        result = {"status": str(needed)}
    print(f"{_RESULT}{json.dumps(result)}", flush=True)
    return 0


# -- the parts ------------------------------------------------------------------------------------------------------


def _pytest(*paths: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "--tb=short", *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{done.stdout[-_MOST_OUTPUT:]}{done.stderr[-_MOST_OUTPUT:]}")
    return {"tests": done.stdout.splitlines()[-1]}


def tests(rehearse: bool) -> dict[str, Any]:
    """The tests of the GPU paths."""
    return _pytest("tests/backend/models/test_on_gpu.py", "tests/backend/policies/test_hardware.py")


def vllm(rehearse: bool) -> dict[str, Any]:
    """A vLLM server whose four roles get new adapters while it answers."""
    if not VLLM.is_file():
        raise NeedsMoreError(f"needs vLLM in {VLLM.parents[1].name}")
    return _pytest("tests/cryptosentinel/llm/vllm/test_real.py")


def mfu(rehearse: bool) -> dict[str, Any]:
    """Tokens a second of a training step and its share of the card's peak, without checkpointing and with."""
    from benchmarks.bench_training_mfu import run

    return {"rows": run()}


def trl(rehearse: bool) -> dict[str, Any]:
    """A whole GRPO step beside TRL's: of SmolLM2 on the GPU, or of a tiny model in the rehearsal."""
    if rehearse:
        import statistics

        from benchmarks import bench_training_step as of_nano
        from benchmarks.trl_step import alternating

        of_nano.PROMPTS, of_nano.GROUP, of_nano.PROMPT_TOKENS, of_nano.NEW_TOKENS = 2, 2, 16, 4
        theirs, ours = alternating(of_nano._work(), 2, 1)
        return {"seconds_ours": statistics.median(ours), "seconds_theirs": statistics.median(theirs)}
    from backend.policies.hardware import Hardware
    from benchmarks.bench_training_step import real_row

    return {"rows": [real_row("training.step.smollm2.gpu", _smollm2(), Hardware("cuda", "bfloat16", compiled=True))]}


def quantized(rehearse: bool) -> dict[str, Any]:
    """Seconds, memory and log-probs of a step over an NF4 base with `adamw8bit`, beside bfloat16 with AdamW."""
    import numpy as np
    import torch

    from backend.models.shape import qwen3_config
    from backend.policies.hardware import Hardware
    from backend.policies.role_policies import RolePolicies
    from backend.training.algorithm.trajectory import Trajectory
    from backend.training.learning.role_trainer import RoleTrainer
    from cryptosentinel.llm.nano import new_nano
    from tests.standard_settings import lora_settings, trainer_settings

    base, found = new_nano(0, qwen3_config("Qwen3-0.6B")), {}
    mask = np.arange(512) >= 256
    rows = [
        Trajectory(
            "manager", "q", number, 0, np.random.default_rng(number).integers(0, 150_000, 512).astype(np.int32), mask,
            np.where(mask, -12.0, 0.0).astype(np.float32), "v", True, 1.0, None, False,
        )
        for number in range(8)
    ]  # fmt: skip
    for name, quantization, optimizer in (("bfloat16", "none", "adamw"), ("nf4", "nf4", "adamw8bit")):
        torch.cuda.reset_peak_memory_stats()
        hardware = Hardware("cuda", "bfloat16", True, quantization)  # type: ignore[arg-type]  # both are known
        policies = RolePolicies(base, ["manager"], "lora", lora_settings(), hardware=hardware)
        trainer = RoleTrainer(policies, "manager", trainer_settings(optimizer=optimizer))
        before, began = policies.version("manager"), time.perf_counter()
        trainer.step(rows, [1.0, -1.0] * 4, [1 / 8] * 8)
        torch.cuda.synchronize()
        found[name] = {
            "seconds": time.perf_counter() - began,
            "gib": torch.cuda.max_memory_allocated() / 2**30,
            "changed": policies.version("manager") != before,
        }
        del policies, trainer
        torch.cuda.empty_cache()
    return found


def learning(rehearse: bool) -> dict[str, Any]:
    """A model through `sft` and M-GRPO, and what its decisions are worth on states that it has not seen."""
    from backend.builders.market import load_market
    from backend.builders.teams import configured_team
    from backend.config.load import load_config
    from backend.evaluation.held_out_value import greedy_teams, held_out_value
    from backend.policies.temporary import temporary_folder
    from backend.runs.requests import SftRequest, TrainRequest
    from backend.runs.train import fine_tune_roles, train_team
    from backend.store.store import Store

    folder = temporary_folder("gpu-check")
    sft: tuple[str, ...]
    steps: tuple[str, ...]
    with Store.open("mem://") as store:
        if rehearse:
            preset, states = "quick", 4
            tiny = (
                "nano.decisions=40",
                "nano.steps=20",
                "nano.layers=1",
                "nano.hidden_size=32",
                "evaluation.windows=2",
            )
            steps = ("training.queries_per_step=1", "training.rollouts_per_query=2", "training.validation_queries=1")
            started = train_team(TrainRequest(config=preset, overrides=(*tiny, *steps)), store, folder)
            common = (f"training.base_model={started.folder / 'nano'}",)
            sft = (
                "sft.states=4",
                "sft.steps=1",
                "sft.score_states=2",
            )
        else:
            preset, states = "smollm2", 256
            common, sft = (f"training.base_model={_smollm2()}",), ("sft.states=120", "sft.steps=30")
            steps = ("training.stage2_steps=6", "training.scenario_source=truth")
        request = SftRequest(config=preset, overrides=(*common, *sft), folder=folder / "sft")
        taught = fine_tune_roles(request, store=store)
        given = (f"training.start_from={taught.folder}",)
        trained = train_team(TrainRequest(config=preset, overrides=(*given, *steps)), store, folder)
    config = load_config(preset, [*given, "training.scenario_source=truth", f"evaluation.states={states}"])
    teams = greedy_teams(
        config,
        configured_team(str(trained.folder), config),
        configured_team(str(trained.folder), config, trained=False),
    )
    value = held_out_value(config, load_market(config.market, config.costs), teams, lambda *progress: None)
    return {"states": states, "rows": value["rows"], "differences": value["differences"]}


def _smollm2() -> Path:
    folder = os.environ.get(SMOLLM2, "")
    if not folder:
        raise NeedsMoreError(f"needs {SMOLLM2}: the folder of the model")
    return Path(folder)


PARTS = {
    part.name: part
    for part in (
        Part("tests", 120, tests),
        Part("quantized", 60, quantized),
        Part("mfu", 110, mfu),
        Part("trl", 120, trl, on_a_cpu=True),
        Part("vllm", 110, vllm),
        Part("learning", 260, learning, on_a_cpu=True),
    )
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
