"""What a step leaves in the store and in the file of metrics."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest import mock
from unittest.mock import MagicMock

import numpy as np
import pytest

from backend.store.records import RunRecord
from backend.store.store import Store
from backend.training import wandb_logger
from backend.training.algorithm.credit import RoleCredit
from backend.training.curriculum.queries import QueryPool
from backend.training.recorder import TrainingRecorder
from backend.training.rollout.collect import Rollout, RolloutSettings, collect
from backend.training.rollout.sharding import Shard
from backend.training.wandb_logger import WandbLogger, require_wandb
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scripted_team import novice_policies
from cryptosentinel.team import Team
from simulator.errors import UserError
from simulator.exchange.costs import Costs
from tests.small_world import HORIZON, RUN, TRAIN, small_market
from tests.standard_limits import guard_limits
from tests.standard_settings import main_credit, sub_credit
from tests.team_scenes import standard_team


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open("mem://") as opened:
        opened.add_run(RunRecord(RUN, "train", 1, "hash", 0, {"config": {"engine": {"url": "http://secret@x"}}}))
        yield opened


@pytest.fixture
def recorder(store: Store, tmp_path: Path) -> Iterator[TrainingRecorder]:
    opened = TrainingRecorder(store, RUN, tmp_path)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def groups() -> list[list[Rollout]]:
    engine = ScriptedEngine(make_byte_codec(), novice_policies())
    team = Team(make_byte_codec(), engine.policy_version, standard_team(horizon_bars=HORIZON))
    queries = QueryPool(small_market(), *TRAIN, HORIZON).draw(1, 0, 4, easy=False)
    return collect(team, engine, queries, RolloutSettings(4, 4, HORIZON, Costs(), 1.0, guard_limits()), 1)


def credits_of(groups: list[list[Rollout]]) -> dict[str, RoleCredit]:
    subs = ("market_analyst", "risk_analyst", "trader")
    return {"manager": main_credit(groups)} | {role: sub_credit(groups, role) for role in subs}


def test_a_step_is_stored_whole_and_twice_is_once(
    recorder: TrainingRecorder, store: Store, groups: list[list[Rollout]]
) -> None:
    for _ in range(2):
        recorder.rollouts(3, 2, Shard(groups, []), {})
        recorder.rewards(3, credits_of(groups))
    every = [one for group in groups for one in group]
    assert [query.bar for query in store.queries(RUN, 3)] == [group[0].query.bar for group in groups]
    stored = store.rollouts(RUN, 3)
    assert [one.outcome for one in stored] == [one.outcome.score for one in every]
    assert [one.calls["trader"] for one in stored] == [sum(c.role == "trader" for c in one.subs) for one in every]
    trajectories = {(t.query, t.rollout, t.role, t.ordinal): t for t in store.trajectories(RUN, 3)}
    assert len(trajectories) == sum(1 + len(one.subs) for one in every)
    for number, group in enumerate(groups):
        for one in group:
            for call in (one.main, *one.subs):
                kept = trajectories[number, one.number, call.role, call.ordinal]
                assert kept.ids == tuple(call.ids.tolist())
                assert kept.mask == tuple(call.mask.tolist())
                assert kept.valid == call.valid
    found = {(r.query, r.rollout, r.role, r.ordinal): r for r in store.rewards(RUN, 3)}
    paid = [item for credit in credits_of(groups).values() for item in credit.items if item.reward is not None]
    assert len(found) == len(paid) > 0
    number_of = {group[0].query.key: number for number, group in enumerate(groups)}
    for item in paid:
        call = item.trajectory
        record = found[number_of[call.query], call.rollout, call.role, call.ordinal]
        assert (record.total, record.advantage) == (item.reward, item.advantage)
        weights = (0.1, 0.9, 0.0) if call.role == "manager" else (0.1, 0.4, 0.5)
        parts = (record.parts["format"], record.parts["outcome"], record.parts.get("expert", 0.0))
        assert record.total == pytest.approx(np.dot(weights, parts)), "the parts make up the total again"


def test_metrics_are_lines_with_null_for_what_is_no_number(
    recorder: TrainingRecorder, store: Store, tmp_path: Path
) -> None:
    recorder.metrics(1, {"a": 0.5, "b": math.nan})
    recorder.metrics(2, {"a": math.inf})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 1, "a": 0.5, "b": None}, {"step": 2, "a": None}]
    assert store.metrics(RUN)[0].values["a"] == 0.5


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> MagicMock:
    """Stands for the package `wandb`; its `init` or its `log` fails where the test says so."""
    made, fails = MagicMock(), getattr(request, "param", "")
    made.init.side_effect = TimeoutError("nobody answers") if fails == "init" else None
    gone = ConnectionResetError("\x1b[31m the service is gone")
    made.init.return_value.log.side_effect = gone if fails == "log" else None
    monkeypatch.setitem(sys.modules, "wandb", made)
    return made


def test_metrics_go_there_as_they_are_in_the_journal_and_nothing_else_does(
    fake: MagicMock, store: Store, tmp_path: Path
) -> None:
    recorder = TrainingRecorder(store, RUN, tmp_path, "mine")
    recorder.metrics(1, {"manager/reward/mean": 0.5, "odd name\n<b>": 1.0})
    recorder.metrics(2, {"manager/reward/mean": 0.75})
    recorder.close()
    assert fake.init.call_args.kwargs == {
        "project": "mine", "id": RUN, "name": RUN, "dir": str(tmp_path), "resume": "allow",
        "settings": fake.Settings.return_value,
    }, "neither the configuration nor anything else"  # fmt: skip
    off = ("disable_code", "disable_git", "disable_job_creation", "x_disable_meta", "x_disable_machine_info")
    given, run = fake.Settings.call_args.kwargs, fake.init.return_value
    assert all(given[name] is True for name in off) and given["console"] == "off"
    sent = [{"step": 1, "manager/reward/mean": 0.5, "odd_name__b_": 1.0}, {"step": 2, "manager/reward/mean": 0.75}]
    assert [one.args[0] for one in run.log.call_args_list] == sent
    assert (
        run.define_metric.call_args_list == [mock.call("step"), mock.call("*", step_metric="step")]
        and run.finish.called
    )


@pytest.mark.parametrize("fake", ["init", "log"], indirect=True)
def test_a_failure_is_said_once_and_ends_nothing(
    fake: MagicMock, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = TrainingRecorder(store, RUN, tmp_path, "mine")
    with caplog.at_level(logging.WARNING):
        for step in (1, 2, 3):
            recorder.metrics(step, {"a": 1.0})
        recorder.close()
    [said] = caplog.messages
    assert "The run " in said and "\x1b" not in said
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == len(store.metrics(RUN)) == 3
    assert fake.init.call_count == 1


def test_a_missing_package_or_key_is_told_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    require_wandb()
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setattr(wandb_logger.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'cryptosentinel\[wandb\]'"):
        require_wandb()
    monkeypatch.setattr(wandb_logger.importlib.util, "find_spec", lambda name: object())
    with pytest.raises(UserError, match=r"WANDB_API_KEY.*WANDB_MODE=offline"):
        require_wandb()
    monkeypatch.setenv("WANDB_MODE", "offline")
    require_wandb()
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(UserError, match="there is no key"):
        require_wandb()
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    require_wandb()


def test_the_package_itself_takes_what_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    mirror = WandbLogger("mine", RUN, tmp_path)
    mirror.log(1, {"a": 0.5, "b": float("nan")})
    mirror.close()
    assert not mirror.failed
    [record] = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert record.name == f"run-{RUN}.wandb" and record.read_bytes().startswith(b":W&B")
