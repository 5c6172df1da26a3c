"""Supervised fine-tuning, whole: from a team's conversations to a team folder, interrupted anywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.builders.teams import load_team
from backend.config.load import config_from_dict
from backend.config.schema import Config
from backend.models.manifest import read_manifest
from backend.training.sft.collection import ROLLOUTS
from backend.training.sft.datasets import read_rows, select
from backend.training.sft_job import SftResult, run_sft
from cryptosentinel.agents.registry import ROLES
from simulator.errors import RunFailed, UserError
from tests.small_world import small_config, small_market, tree


def settings(nano: Path, training: dict[str, Any] | None = None, **changes: Any) -> Config:
    document = small_config(base_model=str(nano), **(training or {})).to_dict()
    document["sft"] |= {
        "states": 40, "steps": 4, "score_states": 4,
    } | changes  # fmt: skip
    return config_from_dict(document, "test")


def run(config: Config, folder: Path, *sources: str, stop: tuple[str, int] | None = None) -> SftResult:
    """A run that Ctrl-C ends at the report `stop`."""

    def report(what: str, done: int, total: int) -> None:
        if (what, done) == stop:
            raise KeyboardInterrupt

    return run_sft(config, small_market(), sources or ("scripted",), folder, report)


@pytest.fixture(scope="module")
def whole(nano: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, SftResult]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole") / "sft"
    config = settings(nano)
    return config, run(config, folder)


def test_it_leaves_a_team_and_says_what_it_did(whole: tuple[Config, SftResult]) -> None:
    config, result = whole
    assert read_manifest(result.folder).adapters == "adapters"
    team = load_team(str(result.folder), config.team, base=config.training.base_model)
    warm = load_team(str(result.folder), config.team, trained=False, base=config.training.base_model)
    written = json.loads((result.folder / "scores.json").read_text())
    for role in ROLES:
        assert team.engine.policy_version(role) != warm.engine.policy_version(role)
        count = result.manifest["counts"][role]
        assert count["kept"] == len(read_rows(result.folder / "data", role)) > 0
        score = result.scores[role]
        assert written["roles"][role] == score
        assert 0.0 <= score["before"] <= 1.0 and 0.0 <= score["after"] <= 1.0
    assert result.manifest["data"]["hash"] == small_market().content_hash


def test_a_finished_run_is_read_and_not_done_again(whole: tuple[Config, SftResult]) -> None:
    config, result = whole
    reports: list[str] = []
    again = run_sft(config, small_market(), ["scripted"], result.folder, lambda what, *_: reports.append(what))
    assert (again.scores, again.manifest, reports) == (result.scores, result.manifest, [])


@pytest.mark.parametrize(
    "stop",
    [
        pytest.param(("collection", 32), marks=pytest.mark.slow),
        ("sft market_analyst", 3),
        pytest.param(("sft trader", 4), marks=pytest.mark.slow),
        pytest.param(("score after", 4), marks=pytest.mark.slow),
    ],
)
def test_interrupted_anywhere_it_comes_to_the_same(
    whole: tuple[Config, SftResult], tmp_path: Path, stop: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, result = whole
    monkeypatch.setattr("backend.training.sft_job.SAVE_EVERY", 2)
    with pytest.raises(KeyboardInterrupt):
        run(config, tmp_path / "sft", stop=stop)
    assert not (tmp_path / "sft" / "scores.json").exists()
    run(config, tmp_path / "sft")
    mine, theirs = tree(tmp_path / "sft"), tree(result.folder)
    assert mine.keys() == theirs.keys()
    own_path = {"team.json"}  # it names the base by its place relative to the folder
    assert {name for name in mine if mine[name] != theirs[name]} <= own_path


def test_more_steps_imitate_better(nano: Path, tmp_path: Path) -> None:
    options = {"steps": 20, "learning_rate": 5e-3, "score_states": 2}
    result = run(settings(nano, {"lora_rank": 8}, **options), tmp_path / "sft")
    better = [losses[1] < losses[0] for losses in result.losses.values() if losses is not None]
    assert better == [True] * len(ROLES)


def test_models_can_be_learnt_from(whole: tuple[Config, SftResult], nano: Path, tmp_path: Path) -> None:
    config = settings(nano, states=6, steps=1, score_states=2)
    result = run(config, tmp_path / "sft", "warm_start", str(whole[1].folder), "scripted")
    sources = {row.source for role in ROLES for row in read_rows(tmp_path / "sft" / "data", role)}
    assert sources & {"warm_start", str(whole[1].folder)}
    collected = result.manifest["counts"]["manager"]["collected"]
    assert collected == 6 * (2 * ROLLOUTS + 1), "the scripted team is heard once"
    assert sum(count["not_best"] for count in result.manifest["counts"].values()) > 0, "there was a choice"


def test_a_role_without_rows_stays_as_the_base(nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backend.training.sft_job.select", lambda said, selection: ([], select([], selection)[1]))
    config = settings(nano, states=6, score_states=2)
    result = run(config, tmp_path / "sft")
    for role in ROLES:
        score = result.scores[role]
        assert score["before"] == score["after"]
        assert result.losses[role] is None
        assert not (tmp_path / "sft" / "training").exists()


def test_a_folder_of_other_settings_is_refused(whole: tuple[Config, SftResult], nano: Path) -> None:
    config, result = whole
    with pytest.raises(UserError, match="begun with other settings: choose a new folder"):
        run(settings(nano, steps=5), result.folder)
    with pytest.raises(UserError, match="begun with other sources"):
        run(config, result.folder, "warm_start")


def test_a_folder_with_something_else_in_it_is_refused(nano: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"is not empty and holds no sft\.json"):
        run(settings(nano), tmp_path)
    (tmp_path / "sft.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        run(settings(nano), tmp_path)


@pytest.mark.parametrize(
    ("sources", "message"), [(["nobody"], "no team 'nobody'"), (["scripted", "scripted"], "each once"), ([], "missing")]
)
def test_sources_that_cannot_be_used_are_refused(nano: Path, tmp_path: Path, sources: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run_sft(settings(nano), small_market(), sources, tmp_path / "sft", lambda *_: None)


def test_a_rate_that_is_too_high_is_named(nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge(trainer: object) -> float:
        raise ValueError("the loss is nan at step 0: lower the learning rate 1.0")

    monkeypatch.setattr("backend.training.sft_job.SupervisedTrainer.step", diverge)
    with pytest.raises(RunFailed, match=r"manager cannot be trained.*sft\.learning_rate"):
        run(settings(nano, states=6), tmp_path / "sft")


def test_an_answer_that_would_be_cut_off_is_no_lesson(nano: Path, tmp_path: Path) -> None:
    document = settings(nano).to_dict()
    document["team"]["max_tokens"] = 16
    with pytest.raises(UserError, match=r"an answer of \w+ has \d+ tokens .* cut off after 16: set team.max_tokens"):
        run(config_from_dict(document, "test"), tmp_path / "sft")
