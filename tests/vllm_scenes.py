"""An engine at the mock server, requests for it, and what it must answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.engine import Completion, Request, Sampling
from cryptosentinel.llm.vllm.engine import VllmEngine
from tests.mock_vllm import MODEL, MockVllm

CODEC = make_byte_codec()


def engine_for(mock: MockVllm, **options: Any) -> VllmEngine:
    """One that gives up soon."""
    quick = {"timeout_s": 1.0, "retries": 2}
    return VllmEngine(CODEC, mock.url, MODEL, CODEC.vocab_size, **(quick | options))


def prompt(text: str) -> tuple[int, ...]:
    """A conversation in which the model is next."""
    return tuple(CODEC.start("Be brief.", text))


def request(seed: int = 1, role: str = "manager", **sampling: Any) -> Request:
    """A short one, whose prompt and seed differ from those of other seeds."""
    return Request(role, prompt(f"number {seed}"), Sampling(**({"max_tokens": 12} | sampling)), seed)


def expected(mock: MockVllm, wanted: Request, model: str = MODEL) -> Completion:
    """What the made-up model says, without HTTP and without the engine."""
    body = {
        "model": model, "prompt": list(wanted.ids), "seed": wanted.seed, "max_tokens": wanted.sampling.max_tokens,
        "temperature": wanted.sampling.temperature, "stop_token_ids": [CODEC.end_of_turn],
    }  # fmt: skip
    choice = mock.complete(body | {"logprobs": 0})["choices"][0]
    ids = tuple(choice["token_ids"])
    return Completion(ids, tuple(choice["logprobs"]["token_logprobs"]), ids[-1] == CODEC.end_of_turn)


def adapter_in(folder: Path, name: str) -> Path:
    """A folder that looks like an adapter."""
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "adapter_config.json").write_text("{}")
    return path


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread is about to do."""
    limit = time.monotonic() + 120.0
    while not condition():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.005)
