"""Trainings of a single agent and of some roles: who is there learns, a resumed run is equal, and the team that comes
of it works as it was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.builders.loaded_team import team_settings
from backend.builders.teams import load_team
from backend.config.load import config_from_dict
from backend.config.schema import Config, ConfigError
from backend.models.manifest import read_manifest
from backend.policies.adapters import read_adapter
from backend.policies.tensor_files import read_tensors
from backend.store.store import Store
from backend.training.curriculum.queries import QueryPool
from backend.training.rl_job import check_trainable
from backend.training.rollout.collect import collect
from backend.training.sft.warm_start import transcribe
from cryptosentinel.agents.registry import STANDARD, roles_of
from cryptosentinel.llm.chat_codec import make_byte_codec
from simulator.errors import Interrupted, UserError
from tests.small_world import (
    HORIZON,
    RUN,
    TRAIN,
    VALIDATION,
    rollout_settings,
    small_config,
    small_market,
    train_as_told,
    tree,
)

STEPS = 2


def config_of(roles: tuple[str, ...], **training: Any) -> Config:
    """A training of one step in each stage, of a team of these sub-agents."""
    options = {"stage1_max_steps": 1, "stage2_steps": 1, "validation_every": 2, "queries_per_step": 4}
    document = small_config(**options | training).to_dict()
    document["team"]["roles"] = roles
    return config_from_dict(document)


@pytest.mark.parametrize(
    "roles",
    [(), pytest.param(("trader", "market_analyst"), marks=pytest.mark.slow)],
    ids=["single agent", "two sub-agents"],
)
def test_a_training_of_the_team_resumes_and_works(roles: tuple[str, ...], nano: Path, tmp_path: Path) -> None:
    config, team = config_of(roles, base_model=str(nano)), roles_of(roles)
    with Store.open("mem://") as store:
        train_as_told(config, tmp_path / "whole", store)
        spoken = {one.role for step in range(STEPS) for one in store.trajectories(RUN, step)}
        rewarded = {one.role for step in range(STEPS) for one in store.rewards(RUN, step)}
        metrics = {name.partition("/")[0] for record in store.metrics(RUN) for name in record.values}
        last = dict(store.metrics(RUN)[-1].values)
        assert spoken <= set(team) and rewarded <= set(team) and "manager" in spoken
        assert not metrics & (set(roles_of(STANDARD)) - set(team))
        assert last["manager/updates"] > 0, "there was something to learn"
    if roles:
        with Store.open("mem://") as store:
            with pytest.raises(Interrupted):
                train_as_told(config, tmp_path / "stopped", store, stop_after=1)
            train_as_told(config, tmp_path / "stopped", store)
        assert tree(tmp_path / "stopped") == tree(tmp_path / "whole")

    folder = tmp_path / "whole"
    files = {path.name.partition(".")[0] for path in (folder / f"checkpoints/step-{STEPS:06d}/policies").iterdir()}
    assert files == set(team)
    contents = [read_tensors(folder / f"checkpoints/step-{STEPS:06d}/policies/{role}.safetensors")[0] for role in team]
    equal = [all((one[name] == contents[0][name]).all() for name in contents[0]) for one in contents]
    assert all(equal) == (len(team) == 1)

    loaded = load_team(str(folder), config_of(STANDARD).team, base=config.training.base_model)
    assert loaded.team.roles == team, "it works as it was trained, whatever team is configured now"
    assert loaded.team.settings.horizon_bars == HORIZON
    queries = QueryPool(small_market(), *VALIDATION, HORIZON).draw(1, 0, 8, easy=False)
    decided = collect(loaded.team, loaded.engine, queries, rollout_settings(config), 1)
    talks = [talk for group in decided for one in group for talk in one.decision.transcripts]
    assert any(talk.valid for talk in talks)
    assert {(talk.role, talk.policy_version) for talk in talks} <= set(versions_in(folder).items())


def versions_in(folder: Path) -> dict[str, str]:
    """By role the version that the team in `folder` decides with."""
    kept = folder / str(read_manifest(folder).adapters)
    return {path.name: read_adapter(path).version for path in kept.iterdir()}


def test_the_warm_start_of_a_single_agent_has_its_conversations_alone() -> None:
    settings = team_settings(config_of(()).team, 1.0)
    pool = QueryPool(small_market(), *TRAIN, HORIZON)
    found = transcribe(make_byte_codec(), [pool], settings, 20, 0.5, 1)
    assert len(found) == 20 and {one.role for one in found} == {"manager"}
    texts = [make_byte_codec().decode(list(one.ids)) for one in found]
    assert all("consult_" not in text for text in texts)
    assert all('"get_funding"' in text for text in texts[:10]), "the expert looks everything up"


@pytest.mark.parametrize(
    ("roles", "training", "said"),
    [
        (("oracle",), {}, "no role 'oracle'"),
        (("trader", "trader"), {}, "named twice"),
        (("market_analyst",), {"freeze": "trader"}, r"training\.freeze lists trader, which team\.roles"),
        (("trader",), {"freeze": "manager,trader"}, "training.freeze names every role that team.roles"),
        (("market_analyst",), {"credit": "shapley"}, r"training\.credit = 'shapley'.*team\.roles"),
        ((), {"alignment": "none"}, r"training\.alignment is about sub-agents.*team\.roles"),
        ((), {"beta": [0.2, 0.4, 0.4]}, r"training\.beta is about sub-agents.*team\.roles"),
    ],
)
def test_settings_about_who_is_not_there_are_refused(
    roles: tuple[str, ...], training: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        check_trainable(config_of(roles, **training))


def test_a_role_that_nothing_scores_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.training.rl_job.STANDARD", STANDARD[:2])
    with pytest.raises(ConfigError, match=r"team\.roles = 'trader': nothing scores what trader says"):
        check_trainable(config_of(("trader",)))
