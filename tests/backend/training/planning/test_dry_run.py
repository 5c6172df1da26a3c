"""One step with random weights: all its parts happen, a model that does not fit is cut, and it is told."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.cli import train as command
from backend.cli.console import console
from backend.cli.train import show_dry_run
from backend.config.load import load_config
from backend.config.schema import Config
from backend.policies.hardware import Hardware
from backend.policies.role_policies import RolePolicies
from backend.training.planning import dry_run as module
from backend.training.planning.dry_run import DryRun, Part, dry_run, project
from backend.training.planning.memory_estimate import GIB
from cryptosentinel.agents.registry import ROLES
from simulator.errors import UserError

PARTS = [
    "build the model",
    "make the policies",
    "weights to the engine",
    "rollouts",
    "credit",
    "read prompts again",
    "sample again",
    "optimizer steps",
    "new weights to the engine",
]


def config(*overrides: str) -> Config:
    return load_config("quick", ["nano.layers=3", "training.lora_rank=2", *overrides])


@pytest.fixture(scope="module")
def found() -> DryRun:
    torch.set_num_threads(1)
    return dry_run(config(), sampled=4)


def test_every_part_is_timed_and_weighed(found: DryRun) -> None:
    assert [part.name for part in found.parts] == PARTS
    assert all(part.seconds > 0.0 and part.peak > 2**20 for part in found.parts)
    assert found.layers == found.shape.layers == 3
    assert found.peak == max(part.peak for part in found.parts)
    assert found.expected.total > 2**20
    # The manager in two rollouts, and each of the others asked twice.
    assert found.conversations == 2 * len(ROLES)
    assert 2 <= found.sampled <= 2 * 5 and found.prompts > 50 and found.trained > found.prompts


def test_every_role_makes_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    before: dict[str, str] = {}
    made: list[RolePolicies] = []
    publish = module._publish

    def watched(policies: RolePolicies, engine: module.LocalEngine) -> None:
        if not made:
            made.append(policies)
            before.update({role: policies.version(role) for role in ROLES})
        publish(policies, engine)

    monkeypatch.setattr(module, "_publish", watched)
    dry_run(config("training.weights=full", "training.kl=0.1", "training.entropy=0.01"), sampled=3)
    assert all(made[0].version(role) != before[role] for role in ROLES)


def test_the_real_model_is_cut_to_what_fits() -> None:
    real = load_config("qwen3_4b")
    shape = module.Shape.of(module.architecture_of(real.training, real.nano))
    plan = module._plan(real, 8, Hardware())
    layers = [module._layers_that_fit(shape, plan, room * GIB) for room in (16, 24, 32, 64, 400)]
    assert layers == sorted(layers) and layers[0] >= 1 and layers[-1] == shape.layers > layers[1]
    cut = module.cut_to(module.architecture_of(real.training, real.nano), 2)
    assert replace(module.Shape.of(cut), layers=shape.layers) == shape
    assert cut.rope_parameters == module.architecture_of(real.training, real.nano).rope_parameters


def test_a_model_of_which_nothing_fits_is_refused() -> None:
    with pytest.raises(UserError, match="cannot fit"):
        dry_run(load_config("qwen3_4b"), memory=2 * GIB)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 64), st.integers(2, 16), st.integers(1, 3))
def test_the_projection_grows_with_the_batch_and_the_blocks(queries: int, rollouts: int, layers: int) -> None:
    sizes = [f"training.queries_per_step={queries}", f"training.rollouts_per_query={rollouts}"]
    parts = tuple(Part(name, 1.0, GIB) for name in PARTS)
    shape = module.Shape.of(module.architecture_of(config().training, config().nano))
    found = DryRun(shape, layers, parts, module.estimate(shape, module.MemoryPlan()), 1000, 20, 4000, 8)
    told = project(found, config(*sizes))
    assert told.conversations == queries * rollouts * len(ROLES)
    assert told.step == pytest.approx(told.rollouts + told.updates + told.publishing)
    assert told.publishing == pytest.approx(3 / layers)
    twice = project(found, config(f"training.queries_per_step={2 * queries}", sizes[1]))
    assert twice.rollouts == pytest.approx(2 * told.rollouts) and twice.updates == pytest.approx(2 * told.updates)


def test_the_step_is_shown(monkeypatch: pytest.MonkeyPatch, found: DryRun) -> None:
    monkeypatch.setattr(console, "_width", 200)
    monkeypatch.setattr(module, "dry_run", lambda config: replace(found, layers=2))
    with console.capture() as captured:
        show_dry_run(config())
    shown = captured.get()
    for words in ("nano:", "at the peak", "fits:", "2 of 3 blocks", "optimizer steps", "would take at most"):
        assert words in shown
    assert "vLLM" not in shown


def test_a_served_model_shows_its_server_too(monkeypatch: pytest.MonkeyPatch, found: DryRun) -> None:
    monkeypatch.setattr(console, "_width", 200)
    monkeypatch.setattr(module, "dry_run", lambda config: found)
    with console.capture() as captured:
        command.show_dry_run(load_config("qwen3_4b", ["training.base_model=Qwen/Qwen3-0.6B"]))
    assert "vLLM: weights" in captured.get() and "0.596 billion" in captured.get()
