"""The warm start teaches the format; same seed, same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from tokenizers import Tokenizer

from backend.builders.loaded_team import team_settings
from backend.builders.teams import model_team
from backend.config.schema import NanoConfig
from backend.config.training import TrainingConfig
from backend.policies.build import role_policies
from backend.processes import ALONE, Workers
from backend.training.curriculum.queries import QueryPool
from backend.training.rollout.collect import collect
from backend.training.sft import warm_start
from backend.training.sft.sft_trainer import Example
from backend.training.sft.warm_start import transcribe
from backend.training.validation import validation_of
from cryptosentinel.llm.chat_codec import ChatCodec, make_byte_codec
from cryptosentinel.llm.scripted import ScriptedPolicy
from cryptosentinel.teachers import Teacher
from tests.copying_helper import CopyingHelper
from tests.small_world import HORIZON, TRAIN, VALIDATION, rollout_settings, small_config, small_market, small_nano, tree

POOL = QueryPool(small_market(), *TRAIN, HORIZON)
SETTINGS = team_settings(small_config().team, 1.0)


def test_transcripts_are_valid_seeded_and_of_every_role() -> None:
    codec = make_byte_codec()
    first = transcribe(codec, [POOL], SETTINGS, 30, 0.3, 1)
    assert first == transcribe(codec, [POOL], SETTINGS, 30, 0.3, 1)
    assert first != transcribe(codec, [POOL], SETTINGS, 30, 0.3, 2)
    assert all(one.valid and any(one.mask) for one in first)
    assert {one.role for one in first} == {"manager", "market_analyst", "risk_analyst", "trader"}


def test_the_teacher_is_the_one_that_is_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    whole = warm_start.expert_policies

    def policies(*args: Any, teacher: Teacher, **options: Any) -> dict[str, ScriptedPolicy]:
        asked.append(teacher)
        return whole(*args, teacher=teacher, **options)

    monkeypatch.setattr(warm_start, "expert_policies", policies)
    assert get_args(NanoConfig.model_fields["teacher"].annotation) == get_args(Teacher)
    nano = NanoConfig(teacher="random_all", hidden_size=16, layers=1, decisions=10, steps=1)
    warm_start.make_nano(tmp_path / "nano", [POOL], SETTINGS, nano, 11, lambda what, done, total: None)
    assert set(asked) == {"random_all"}


def test_helpers_share_the_transcripts_and_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start, "_DECISIONS_AT_ONCE", 2)
    learnt: list[list[Example]] = []

    def noted(model: object, examples: list[Example], *rest: object) -> list[float]:
        learnt.append(examples)
        return []

    monkeypatch.setattr(warm_start, "warm_start", noted)
    nano = NanoConfig(hidden_size=16, layers=1, decisions=16, teacher_share=0.7, steps=1)
    helper = CopyingHelper()
    for name, workers in (("alone", ALONE), ("shared", Workers([helper]))):
        warm_start.make_nano(tmp_path / name, [POOL], SETTINGS, nano, 11, lambda *_: None, workers=workers)
    codec = ChatCodec(Tokenizer.from_file(str(tmp_path / "alone" / "tokenizer.json")))
    said = transcribe(codec, [POOL], SETTINGS, 16, 0.7, 11, nano.teacher)
    for examples in learnt:
        assert [(ids.tolist(), mask.tolist()) for ids, mask in examples] == [
            (list(one.ids), list(one.mask)) for one in said
        ]
    assert helper.tasks > 0 and tree(tmp_path / "alone") == tree(tmp_path / "shared")


def test_the_same_seed_makes_the_same_nano(tmp_path: Path) -> None:
    one, other = (small_nano(tmp_path / name, hidden=32, steps=3, decisions=10) for name in ("one", "other"))
    assert tree(one) == tree(other)


def test_the_warm_start_teaches_the_format(nano: Path, tmp_path: Path) -> None:
    config = small_config(validation_queries=6)

    def valid(base: Path) -> float:
        policies, codec = role_policies(base, TrainingConfig(lora_rank=2))
        loaded = model_team("x", policies, codec, config.team, 1.0, config.training.precision)
        queries = QueryPool(small_market(), *VALIDATION, HORIZON).draw(1, 0, 6, easy=False)
        groups = collect(loaded.team, loaded.engine, queries, rollout_settings(config), 1)
        return validation_of(groups).valid["manager"]

    assert valid(nano) > 0.2
    assert valid(small_nano(tmp_path / "raw", hidden=32, steps=1, decisions=10)) == pytest.approx(0.0)
