"""Trainings that go on from a team: with its weights, held to them by the KL, and in need of its folder no longer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from backend.builders.spans import trained_span
from backend.builders.teams import load_team
from backend.config.load import config_from_dict
from backend.config.schema import ConfigError
from backend.distributed.actor import ServicePlace, open_service
from backend.distributed.driver import CoordinatorState
from backend.distributed.files import RunFiles
from backend.models.manifest import TeamManifest, read_manifest, write_manifest
from backend.models.registry import START
from backend.models.shape import Shape, architecture_of
from backend.policies.build import role_policies
from backend.store.store import Store
from backend.training.memory_estimate import estimate, plan_of
from backend.training.sft_job import run_sft
from backend.training.start import NANO, begin, start_of
from cryptosentinel.agents.registry import ROLES
from simulator.errors import Interrupted, UserError
from tests.backend.distributed.services_here import begin_run, last_parameters, open_run
from tests.small_world import (
    RUN,
    disturb,
    one_process_trainer,
    small_config,
    small_market,
    smaller_config,
    team_in,
    train_as_told,
    tree,
)

KL = 0.5


@pytest.fixture
def team(nano: Path, tmp_path: Path) -> Path:
    return team_in(tmp_path / "first", nano)


def silent(what: str, done: int, total: int) -> None:
    pass


def versions(team: Path, *, trained: bool = True) -> dict[str, str]:
    engine = load_team(str(team), small_config().team, trained=trained).engine
    return {role: engine.policy_version(role) for role in ROLES}


@pytest.mark.parametrize("shape", [{}, {"lora_rank": 0}], ids=["lora", "full"])
def test_the_kl_is_to_the_start_and_the_reference_leaves_no_trace(
    nano: Path, tmp_path: Path, shape: dict[str, Any]
) -> None:
    team = team_in(tmp_path / "first", nano, **shape)
    training = small_config(**shape, start_from=str(team), kl=KL).training
    policies, _ = role_policies(team / "nano", training, start=team / "adapters" / "step-000007")
    ids = torch.arange(1, 41).reshape(2, 20)
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[:, 8:] = True
    base = role_policies(team / "nano", training)[0].reference_logps("trader", ids, mask)
    first = policies.logps("trader", ids, mask)[0].detach()
    assert (first - base).abs().max() > 1e-3, "the start is the base, so this would show nothing"
    assert torch.equal(policies.reference_logps("trader", ids, mask), first)
    disturb(policies)
    now, version = policies.logps("trader", ids, mask)[0].detach(), policies.version("trader")
    assert (now - first).abs().max() > 1e-3
    assert torch.equal(policies.reference_logps("trader", ids, mask), first)
    assert torch.equal(policies.logps("trader", ids, mask)[0], now) and policies.version("trader") == version
    policies.logps("trader", ids, mask)[0].sum().backward()
    assert all(one.grad is not None for one in policies.trainable("trader"))


def test_without_a_kl_no_second_copy_is_kept(team: Path) -> None:
    config = small_config(start_from=str(team))
    held = small_config(start_from=str(team), kl=KL)
    start = team / "adapters" / "step-000007"
    assert not role_policies(team / "nano", config.training, start=start)[0]._anchors
    assert role_policies(team / "nano", held.training, start=start)[0]._anchors.keys() == set(ROLES)
    shape = Shape.of(architecture_of(config.training, config.nano))
    adapters = len(ROLES) * shape.adapter(2) * 4
    less, more = (estimate(shape, plan_of(one, shape)) for one in (config, held))
    assert more.of("always") - less.of("always") == adapters
    assert more.of("updates") - less.of("updates") == adapters // len(ROLES)


def test_a_run_goes_on_from_a_team_and_needs_it_no_longer(team: Path, tmp_path: Path, store: Store) -> None:
    """The first step is sampled by the team's weights, whose KL to themselves is 0; resumed, all is equal to the bit,
    though the team has gone meanwhile."""
    options = {
        "minibatches": 1,
        "stage1_max_steps": 1,
        "stage2_steps": 2,
        "rollouts_per_query": 4,
        "queries_per_step": 4,
    }
    config = smaller_config(start_from=str(team), kl=KL, **options)
    first = versions(team)
    train_as_told(config, tmp_path / "whole", store)
    assert {one.policy_version for one in store.trajectories(RUN, 0)} == set(first.values())
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    told = [{role: line[f"{role}/kl"] for role in ROLES if f"{role}/kl" in line} for line in lines]
    assert told[1] and all(abs(value) < 1e-6 for value in told[1].values())
    assert any(value > 1e-6 for later in told[2:] for value in later.values())

    with Store.open("mem://") as other:
        with pytest.raises(Interrupted):
            train_as_told(config, tmp_path / "cut", other, stop_after=2)
        shutil.rmtree(team)
        train_as_told(config, tmp_path / "cut", other)
    mine, theirs = tree(tmp_path / "cut"), tree(tmp_path / "whole")
    assert mine.keys() == theirs.keys()
    assert [name for name in mine if mine[name] != theirs[name]] == []

    manifest = read_manifest(tmp_path / "whole")
    assert (manifest.base, manifest.start) == ("nano", "adapters/start")
    assert versions(tmp_path / "whole", trained=False) == first


def test_a_run_that_kept_nothing_is_the_team_it_began_with(team: Path, tmp_path: Path) -> None:
    config = small_config(start_from=str(team))
    folder = tmp_path / "second"
    begin(config, small_market(), folder, silent)
    write_manifest(folder, TeamManifest.of(config, base="nano", adapters=None, start="adapters/start"))
    assert versions(folder) == versions(folder, trained=False) == versions(team)
    assert versions(team, trained=False) != versions(team)
    third = begin(small_config(start_from=str(folder)), small_market(), tmp_path / "third", silent)
    assert third == tmp_path / "third" / "nano"
    assert versions(tmp_path / "third" / "adapters" / "start") == versions(team), "the copy is a team as well"


@pytest.mark.slow
def test_apart_it_is_the_same_training(
    team: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"stage1_max_steps": 1, "stage2_steps": 2, "start_from": str(team), "kl": KL}
    config = small_config(**options)
    joint, apart = tmp_path / "joint", tmp_path / "apart"
    base = begin(config, small_market(), joint, silent)
    begin(config, small_market(), apart, silent)
    with Store.open("mem://") as opened:
        begin_run(opened, config)
        trainer = one_process_trainer(config, small_market(), opened, joint, base)
        trainer.run()
    begin_run(store, config)
    open_run(config, apart / "nano", apart, store, monkeypatch)[0].run()
    state = CoordinatorState(apart).load()
    assert state is not None and state.best_score == trainer.state.best_score
    for role in ROLES:
        mine, theirs = last_parameters(apart, role), last_parameters(joint, role)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_what_a_run_began_with_travels_to_other_machines(
    team: Path, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer elsewhere has the base and the weights to begin with from the URL."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    config = small_config(start_from=str(team), kl=KL)
    home, url = tmp_path / "home", f"file://{tmp_path / 'bucket'}"
    begin(config, small_market(), home, silent)
    begin_run(store, config)
    for part in (NANO, START):
        RunFiles(home, url).send_folder(part)
    shutil.rmtree(team)
    place = ServicePlace(config, "", RUN, home, Path.cwd(), url, "", "")
    open_service(place, "trainer-trader", "trader", store)
    away = place.files("trainer-trader").folder
    start = start_of(config.training, away)
    assert away != home and start is not None
    assert (tree(start), tree(away / NANO)) == (tree(home / START), tree(home / NANO))


def test_sft_is_a_start(nano: Path, tmp_path: Path) -> None:
    document = small_config(base_model=str(nano)).to_dict()
    document["sft"] |= {
        "states": 8, "steps": 2, "score_states": 2,
    }  # fmt: skip
    first = tmp_path / "sft"
    run_sft(config_from_dict(document), small_market(), ["scripted"], first, silent)
    (first / "adapters" / "trader" / "adapter_model.safetensors").write_bytes(b"cut short")
    shutil.copytree(nano, tmp_path / "nano")
    config = small_config(start_from=str(first), base_model=str(nano))
    folder = tmp_path / "second"
    assert begin(config, small_market(), folder, silent).samefile(nano), "a base that lies elsewhere stays there"
    with pytest.raises(UserError, match="was cut short or changed"):
        role_policies(nano, config.training, start=start_of(config.training, folder))
    document["training"] |= {"base_model": "", "start_from": str(first)}
    with pytest.raises(ConfigError, match=r"training\.start_from = .* `sft` begins with a base"):
        run_sft(config_from_dict(document), small_market(), ["scripted"], tmp_path / "again", silent)


def _without_weights(team: Path) -> None:
    write_manifest(team, read_manifest(team).model_copy(update={"adapters": None}))


def _without_a_role(team: Path) -> None:
    shutil.rmtree(team / "adapters" / "step-000007" / "trader")


def _in_other_parts(team: Path) -> None:
    manifest = read_manifest(team)
    span = trained_span(small_config(), small_market()).model_copy(update={"shares": (0.5, 0.15)})
    write_manifest(team, manifest.model_copy(update={"trained_on": (span,)}))


FAULTS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "gone": (shutil.rmtree, r"training\.start_from = .*first is not the folder of a team"),
    "weights": (_without_weights, r"training\.start_from = .* is its base itself.* training\.base_model"),
    "role": (_without_a_role, r"training\.start_from: .* holds nothing of trader"),
    "base": (lambda team: shutil.rmtree(team / "nano"), "there is no model folder"),
    "parts": (_in_other_parts, r"trained on this market in other parts.* set market\.shares = \[0\.5"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_team_that_is_no_start_is_refused_and_nothing_is_left_of_it(team: Path, tmp_path: Path, what: str) -> None:
    spoil, message = FAULTS[what]
    spoil(team)
    folder = tmp_path / "second"
    with pytest.raises(UserError, match=message):
        begin(small_config(start_from=str(team)), small_market(), folder, silent)
    assert not (folder / "adapters" / "start").exists()


def test_other_shapes_and_roles_are_refused_by_name(team: Path, nano: Path, tmp_path: Path) -> None:
    start = team / "adapters" / "step-000007"
    with pytest.raises(
        UserError,
        match=r"training\.start_from = .*first cannot be continued from: .* its lora is .*'r': 2.* here it is .*'r': 4",
    ):
        role_policies(nano, small_config(start_from=str(team), lora_rank=4).training, start=start)
