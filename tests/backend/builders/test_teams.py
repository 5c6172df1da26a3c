"""Teams that are made of policies: the numbers that their engine computes in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend.builders.teams import model_team
from backend.config.training import TrainingConfig
from backend.policies.build import role_policies
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
