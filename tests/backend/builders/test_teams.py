"""Teams that are made of policies: the numbers that their engine computes in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from backend.builders import engines
from backend.builders.teams import model_team
from backend.config.load import load_config
from backend.config.schema import ConfigError
from backend.config.training import TrainingConfig
from backend.policies.build import role_policies
from backend.training.rl_job import check_trainable
from cryptosentinel.llm.engine import Completion, Request, Sampling
from cryptosentinel.llm.local.engine import LocalEngine
from tests.small_world import small_config


def engine_of(nano: Path, precision: str) -> LocalEngine:
    policies, codec = role_policies(nano, TrainingConfig(lora_rank=2))
    loaded = model_team("x", policies, codec, small_config().team, 1.0, precision)
    assert isinstance(loaded.engine, LocalEngine)
    return loaded.engine


def answer_of(engine: LocalEngine) -> Completion:
    [answer] = engine.generate([Request("manager", (5, 6, 7, 8), Sampling(temperature=0.0, max_tokens=1), 1, ())])
    return answer


def test_a_team_answers_in_float32_unless_it_is_trained_in_bfloat16(nano: Path) -> None:
    torch.set_num_threads(1)
    whole, plain, half = (engine_of(nano, precision) for precision in ("float32", "auto", "bfloat16"))
    assert answer_of(whole) == answer_of(plain)
    assert half.weight_bytes < 0.8 * whole.weight_bytes, "positions stay float32"
    assert answer_of(half).logps != answer_of(whole).logps, "rounded"
    assert answer_of(half).logps == pytest.approx(answer_of(whole).logps, abs=0.05)


SERVED = ["engine.kind=vllm", "training.base_model=Qwen3-0.6B"]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How servers were started."""
    seen: list[dict[str, Any]] = []

    def start(base: Path, log: Path, **options: Any) -> object:
        seen.append(options)
        return object()

    monkeypatch.setattr("cryptosentinel.llm.vllm.server.VllmServer", start)
    engines._server.cache_clear()
    return seen


@pytest.mark.parametrize(("rank", "allowed"), [(1, 16), (16, 16), (17, 32), (24, 32), (200, 256), (256, 256)])
def test_the_server_takes_a_rank_that_it_knows(started: list[dict[str, Any]], rank: int, allowed: int) -> None:
    engines._server(Path("base"), "python", 0, rank, 0.0)
    assert started[0]["rank"] == allowed and started[0]["arguments"] == ()


def test_the_server_gets_its_share(started: list[dict[str, Any]]) -> None:
    engines._server(Path("base"), "python", 0, 16, 0.4)
    assert started[0]["arguments"] == ("--gpu-memory-utilization", "0.4")


def test_a_server_that_takes_the_whole_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    check_trainable(load_config("quick", SERVED))  # no GPU: the training is on the CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ConfigError, match=r"engine\.kind = vllm .*engine\.gpu_share.*engine\.url"):
        check_trainable(load_config("quick", SERVED))
    for more in ("engine.gpu_share=0.4", "engine.url=http://localhost:8000/v1"):
        check_trainable(load_config("quick", [*SERVED, more]))


@pytest.mark.parametrize("others", [["engine.kind=local"], [*SERVED, "engine.url=http://localhost:8000/v1"]])
def test_a_share_without_a_server_of_ours_is_refused(others: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"gpu_share = 0\.4 is of a vLLM server that is started here"):
        load_config("quick", [*others, "engine.gpu_share=0.4"])
