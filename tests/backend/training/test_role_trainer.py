"""A role's trainer: the gradient it promises, the shortcuts that change nothing, and a resume that is bit-equal."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from backend.config.training import TrainingConfig
from backend.policies.logprobs import token_logps
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.recipes import DrGrpo
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning import role_trainer
from backend.training.learning.role_trainer import RoleTrainer
from backend.training.optimizers import OptimizerName
from simulator.errors import UserError
from tests.small_world import disturb
from tests.standard_settings import changed, trainer_settings

Make = Callable[..., Trajectory]
FREE = trainer_settings(learning_rate=1e-2, warmup_steps=1, max_grad_norm=1e9)
ROLES = ("manager", "trader")


def moved(tiny: Qwen3ForCausalLM) -> RolePolicies:
    """Policies away from their start: at B = 0 half of a LoRA's gradient is 0."""
    return disturb(RolePolicies(tiny, ROLES), size=0.05, seed=1)


def tensors(one: Trajectory) -> tuple[Tensor, Tensor]:
    """Ids and mask (1, T)."""
    return torch.from_numpy(one.ids).long()[None], torch.from_numpy(one.mask)[None]


def sampled(policies: RolePolicies, one: Trajectory) -> Trajectory:
    """The same trajectory as if the role's present policy had sampled it."""
    with torch.no_grad():
        logps = policies.logps(one.role, *tensors(one))[0][0]
    return replace(one, sampled_logps=logps.numpy())


def some(policies: RolePolicies, make: Make, count: int = 6) -> tuple[list[Trajectory], list[float], list[float]]:
    """Trajectories of different lengths, advantages (one of them 0), weights."""
    batch = [sampled(policies, make(i, prompt=3 + 2 * i, answer=1 + i % 3)) for i in range(count)]
    rng = np.random.default_rng(0)
    advantages = rng.normal(size=count)
    advantages[2] = 0.0
    return batch, advantages.tolist(), rng.uniform(0.1, 0.5, count).tolist()


def close(got: list[Tensor], want: list[Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("how", ["mgrpo", "dapo", "dr_grpo"])
def test_the_step_takes_the_policy_gradient_of_the_weighted_mean(
    how: str, tiny: Qwen3ForCausalLM, make: Make, gradients: list[list[Tensor]]
) -> None:
    """In the means over tokens a call without a gradient counts too."""
    policies = moved(tiny)
    batch, advantages, weights = some(policies, make)
    tokens = [int(one.mask.sum()) for one in batch]
    total = sum(weights)
    loss = torch.zeros(())
    for one, advantage, weight, count in zip(batch, advantages, weights, tokens, strict=True):
        logps = token_logps(policies.activate("manager"), *tensors(one))[0].sum()
        loss = loss - weight * advantage * (logps / count if how == "mgrpo" else logps)
    counted = {"mgrpo": total, "dr_grpo": DrGrpo.length * total, "dapo": float(np.dot(weights, tokens))}[how]
    want = torch.autograd.grad(loss / counted, policies.trainable("manager"))
    metrics = RoleTrainer(policies, "manager", changed(FREE, recipe=how)).step(batch, advantages, weights)
    close(gradients[0], list(want))
    norm = torch.sqrt(sum((g**2).sum() for g in want))  # type: ignore[arg-type] # not the empty sum
    assert metrics["manager/grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert metrics["manager/engine_gap"] < 1e-5
    assert metrics["manager/ratio/max"] == pytest.approx(1.0)
    assert metrics["manager/clip_share"] == 0.0
    assert metrics["manager/importance/mean"] == pytest.approx(1.0, abs=1e-5)
    assert (metrics["manager/trained"], metrics["manager/updates"]) == (5.0, 1.0)
    assert metrics["manager/tokens"] == sum(tokens) - tokens[2]


def test_no_signal_takes_no_step(tiny: Qwen3ForCausalLM, make: Make) -> None:
    policies = moved(tiny)
    batch, advantages, weights = some(policies, make)
    trainer = RoleTrainer(policies, "manager", FREE)
    trainer.step(batch, advantages, weights)  # so that there is momentum
    before = policies.version("manager")
    for metrics in (trainer.step(batch, [0.0] * 6, weights), trainer.step([], [], [])):
        assert metrics["manager/updates"] == metrics["manager/trained"] == 0.0
        assert "manager/loss" not in metrics
    assert policies.version("manager") == before
    assert (trainer.updates, trainer.batches) == (1, 3)


def test_training_one_role_leaves_the_others_bit_equal(tiny: Qwen3ForCausalLM, make: Make) -> None:
    alone, together = moved(tiny), moved(tiny)
    batch, advantages, weights = some(alone, make)
    foreign = [replace(one, role="trader") for one in batch]
    manager, both = RoleTrainer(alone, "manager", FREE), RoleTrainer(together, "manager", FREE)
    trader = RoleTrainer(together, "trader", changed(FREE, kl=0.1))
    for _ in range(2):
        trader.step(foreign, advantages, weights)
        assert manager.step(batch, advantages, weights) == both.step(batch, advantages, weights)
    assert alone.version("manager") == together.version("manager")
    assert alone.version("trader") != together.version("trader")
    with pytest.raises(ValueError, match="trader"):
        manager.step(foreign, advantages, weights)


def test_the_kl_term_pulls_back_to_the_base_and_that_of_entropy_flattens(tiny: Qwen3ForCausalLM, make: Make) -> None:
    told: dict[str, list[float]] = {}
    for name in ("kl", "entropy"):
        policies = moved(tiny)
        batch, _, weights = some(policies, make)
        trainer = RoleTrainer(policies, "manager", changed(FREE, **{name: 1.0}))
        told[name] = []
        for _ in range(10):
            batch = [sampled(policies, one) for one in batch]
            told[name].append(trainer.step(batch, [0.0] * 6, weights)[f"manager/{name}"])
    assert told["kl"][-1] < 0.5 * told["kl"][0]
    assert told["entropy"] == sorted(told["entropy"]) and told["entropy"][-1] > told["entropy"][0] + 0.05


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each pass that was made for the log-probs before the first update."""
    made: list[int] = []
    whole = RoleTrainer._proximal_logps

    def counted(self: RoleTrainer, rows: Any, temperature: float) -> Any:
        made.append(len(rows))
        return whole(self, rows, temperature)

    monkeypatch.setattr(RoleTrainer, "_proximal_logps", counted)
    return made


def test_log_probs_that_are_the_engine_s_are_not_computed_again(
    tiny: Qwen3ForCausalLM,
    make: Make,
    gradients: list[list[Tensor]],
    passes: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policies = moved(tiny)
    batch, advantages, weights = some(policies, make)
    settings = changed(FREE, minibatches=3, clip_low=0.01, clip_high=0.01)
    for same in (-1.0, 1e-3):
        monkeypatch.setattr(role_trainer, "_SAME_LOGPS", same)
        metrics = RoleTrainer(copy.deepcopy(policies), "manager", settings).step(batch, advantages, weights)
    half = 3
    assert len(gradients) == 2 * half and metrics["manager/clip_share"] > 0.0, "the ratio made no difference"
    for computed, taken in zip(gradients[:half], gradients[half:], strict=True):
        close(taken, computed)
    assert len(passes) == 1, "a pass that nothing needs"


def test_an_engine_of_another_law_or_of_several_versions_is_not_believed(
    tiny: Qwen3ForCausalLM, make: Make, passes: list[int]
) -> None:
    policies = moved(tiny)
    batch, advantages, weights = some(policies, make)
    settings = changed(FREE, minibatches=2)
    shift = [np.where(one.mask, np.float32(0.01), np.float32(0.0)) for one in batch]
    apart = [replace(one, sampled_logps=one.sampled_logps - by) for one, by in zip(batch, shift, strict=True)]
    two_versions = [replace(batch[0], policy_version="older"), *batch[1:]]
    for spoken in (apart, two_versions):
        passes.clear()
        RoleTrainer(copy.deepcopy(policies), "manager", settings).step(spoken, advantages, weights)
        assert len(passes) == 1 and passes[0] > 0


@pytest.mark.parametrize("recipe", ["mgrpo", "dapo"])
def test_minibatches_of_an_unmoved_policy_average_to_the_whole(
    recipe: str, tiny: Qwen3ForCausalLM, make: Make, gradients: list[list[Tensor]]
) -> None:
    policies = moved(tiny)
    batch, advantages, weights = some(policies, make)
    for count in (1, 2):
        settings = changed(FREE, learning_rate=0.0, recipe=recipe, minibatches=count)
        RoleTrainer(policies, "manager", settings).step(batch, advantages, weights)
    close([(a + b) / 2 for a, b in zip(gradients[1], gradients[2], strict=True)], gradients[0])


def test_a_stale_engine_is_weighed_and_reported(
    tiny: Qwen3ForCausalLM, make: Make, gradients: list[list[Tensor]]
) -> None:
    policies = moved(tiny)
    fresh = sampled(policies, make(1))
    shift = np.where(fresh.mask, np.float32(-0.5), np.float32(0.0))
    stale = replace(fresh, sampled_logps=fresh.sampled_logps + shift)
    for one, cap, cut in ((fresh, 2.0, 0.0), (stale, 2.0, 0.0), (stale, 1.25, 1.0)):
        trainer = RoleTrainer(copy.deepcopy(policies), "manager", changed(FREE, importance_cap=cap))
        metrics = trainer.step([one], [1.0], [1.0])
        assert metrics["manager/importance/cut_share"] == cut
    assert metrics["manager/engine_gap"] == pytest.approx(0.5, abs=1e-5)
    assert metrics["manager/importance/mean"] == pytest.approx(1.25)
    close(gradients[1], [np.exp(0.5) * g for g in gradients[0]])
    close(gradients[2], [1.25 * g for g in gradients[0]])


def test_an_update_that_is_not_finite_is_skipped_and_leaves_no_trace(tiny: Qwen3ForCausalLM, make: Make) -> None:
    """Infinite as float32, so that every entry of the gradient is NaN: what stayed of it would spoil the next one."""
    policies = moved(tiny)
    batch, advantages, weights = some(policies, make)
    fresh = RoleTrainer(copy.deepcopy(policies), "manager", FREE)
    trainer = RoleTrainer(policies, "manager", FREE)
    before = policies.version("manager")
    # The second one is finite in each call, and its sum is not.
    for broken, heavy in (([a * 1e39 for a in advantages], 1.0), ([a * 1e38 for a in advantages], 1e30)):
        metrics = trainer.step(batch, broken, [heavy * w for w in weights])
        assert metrics["manager/skipped_updates"] == 1.0 and trainer.updates == 0
        assert all(parameter.grad is None for parameter in policies.trainable("manager"))
        assert policies.version("manager") == before
    found, wanted = (one.step(batch, advantages, weights) for one in (trainer, fresh))
    assert found == wanted and found["manager/updates"] == 1.0


def test_bad_numbers_are_refused(tiny: Qwen3ForCausalLM, make: Make) -> None:
    trainer, one = RoleTrainer(RolePolicies(tiny, ROLES), "manager", FREE), make(1)
    for advantages, weights in (([float("nan")], [1.0]), ([1.0], [-1.0]), ([1.0, 2.0], [1.0]), ([1.0], [])):
        with pytest.raises(ValueError, match="advantages"):
            trainer.step([one], advantages, weights)


def test_the_gradient_norm_is_bounded(tiny: Qwen3ForCausalLM, make: Make, gradients: list[list[Tensor]]) -> None:
    policies = moved(tiny)
    batch, advantages, weights = some(policies, make)
    metrics = RoleTrainer(policies, "manager", changed(FREE, max_grad_norm=0.01)).step(batch, advantages, weights)
    assert metrics["manager/grad_norm"] > 0.02, "the norm reported is the one before clipping"
    assert torch.cat([g.flatten() for g in gradients[0]]).norm().item() == pytest.approx(0.01, rel=1e-3)


VOCABULARY = 40  # of the tiny model


def spoken(policies: RolePolicies, seed: int, length: int) -> Trajectory:
    """A prompt, and sampled tokens at its end."""
    ids = np.random.default_rng(seed).integers(0, VOCABULARY, 6 + length).astype(np.int32)
    mask = np.repeat([False, True], [6, length])
    logps = np.zeros(len(ids), np.float32)
    one = Trajectory("manager", "q0", seed, 0, ids, mask, logps, "v", True, 1.0, None, False, thought_tokens=1)
    return sampled(policies, one)


def test_thoughts_that_are_not_learnt_have_no_gradient(tiny: Qwen3ForCausalLM, gradients: list[list[Tensor]]) -> None:
    """With all that was sampled masked but the answer, other thoughts of the same ids change nothing but what the
    answer is given; with nothing left, nothing moves."""
    policies = moved(tiny)
    whole = spoken(policies, 3, 6)
    thought = np.flatnonzero(whole.mask)[:4]
    mask, logps = whole.mask.copy(), whole.sampled_logps.copy()
    mask[thought], logps[thought] = False, 0.0
    answer = replace(whole, mask=mask, sampled_logps=logps)
    loss = -token_logps(policies.activate("manager"), *tensors(answer))[0].sum() / 2
    want = torch.autograd.grad(loss, policies.trainable("manager"))
    RoleTrainer(policies, "manager", FREE).step([answer], [1.0], [1.0])
    close(gradients[0], list(want))
    nothing = replace(whole, mask=np.zeros_like(mask), sampled_logps=np.zeros_like(logps))
    assert RoleTrainer(policies, "manager", FREE).step([nothing], [1.0], [1.0])["manager/updates"] == 0.0


INSTALLED = [  # adamw8bit computes on a CPU as well, slowly
    "adamw",
    pytest.param(
        "adamw8bit", marks=pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
    ),
]
RATE = 1e-2


def settings(name: OptimizerName) -> TrainingConfig:
    return trainer_settings(learning_rate=RATE, warmup_steps=3, optimizer=name, max_grad_norm=1e9)


def log_prob(policies: RolePolicies, one: Trajectory) -> float:
    with torch.no_grad():
        return float(policies.logps("manager", *tensors(one))[0].sum())


@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.parametrize("name", INSTALLED)
def test_the_rewarded_becomes_likelier(name: OptimizerName, mode: str, tiny: Qwen3ForCausalLM, make: Make) -> None:
    policies = RolePolicies(tiny, ["manager"], mode)  # type: ignore[arg-type] # one of the two
    trainer = RoleTrainer(policies, "manager", settings(name))
    good, bad = make(1), make(2)
    before = log_prob(policies, good) - log_prob(policies, bad)
    for _ in range(6):
        trainer.step([good, bad], [1.0, -1.0], [0.5, 0.5])
    assert log_prob(policies, good) - log_prob(policies, bad) > before + 0.1


@pytest.mark.parametrize("name", INSTALLED)
@pytest.mark.parametrize("terms", [{}, {"minibatches": 2, "kl": 0.1}])
@pytest.mark.parametrize("mode", ["lora", "full"])
def test_two_steps_and_two_more_are_four(
    mode: Any, terms: dict[str, Any], name: OptimizerName, tiny: Qwen3ForCausalLM, make: Make, tmp_path: Path
) -> None:
    """With a save and a load between them, bit for bit; the rate warms up and follows its schedule."""
    rates = (1.0, 0.75, 0.5, 0.25)
    batch, advantages, weights = some(RolePolicies(tiny, ROLES, mode), make)

    def start() -> RoleTrainer:
        return RoleTrainer(RolePolicies(tiny, ROLES, mode), "manager", changed(settings(name), **terms))

    straight = start()
    whole = [straight.step(batch, advantages, weights, rate=rate) for rate in rates]
    first, second = start(), start()
    halves = [first.step(batch, advantages, weights, rate=rate) for rate in rates[:2]]
    first.policies.save(tmp_path)
    first.save(tmp_path / "trainer.safetensors")
    second.policies.load(tmp_path)
    second.load(tmp_path / "trainer.safetensors")
    halves += [second.step(batch, advantages, weights, rate=rate) for rate in rates[2:]]
    assert halves == whole
    versions = [one.policies.version("manager") for one in (first, second, straight)]
    assert versions[0] != versions[1] == versions[2]
    if not terms:
        rates_had = [metrics["manager/lr"] for metrics in whole]
        assert rates_had == pytest.approx([RATE / 3, RATE * 2 / 3 * 0.75, RATE * 0.5, RATE * 0.25])


@pytest.mark.parametrize("name", INSTALLED)
def test_the_state_of_another_optimizer_or_model_is_refused(
    name: OptimizerName, tiny: Qwen3ForCausalLM, make: Make
) -> None:
    policies = RolePolicies(tiny, ["manager"])
    trainer = RoleTrainer(policies, "manager", settings(name))
    trainer.step([make(1)], [1.0], [1.0])
    tensors, header = trainer.state_dict()
    fresh = RoleTrainer(policies, "manager", settings(name))
    with pytest.raises(UserError, match=f"is that of another: resume with training.optimizer = another, not {name}"):
        fresh.load_state_dict(tensors, {**header, "optimizer": "another"})
    cut = {key: tensor for key, tensor in tensors.items() if not key.startswith("3.")}
    numbers = {key: value for key, value in header["numbers"].items() if not key.startswith("3.")}
    wide = {key: torch.zeros(7, 3, 2) if tensor.dim() else tensor for key, tensor in tensors.items()}
    for wrong, said in ((cut, "not of"), (wide, r"\(7, 3, 2\)")):
        same = RoleTrainer(policies, "manager", settings(name))
        with pytest.raises(UserError, match=f"other parameters.*{said}"):
            same.load_state_dict(wrong, {**header, "numbers": numbers if wrong is cut else header["numbers"]})
        assert same.state_dict()[0] == {} and same.updates == 0, "what is refused changes nothing"
