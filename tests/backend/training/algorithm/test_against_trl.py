"""The formulas against TRL 1.16's own code: the same tensors through its loss and its advantages and through ours.

TRL's trainer is made without a run: an object that has the attributes which the methods under test read. What differs
on purpose, and is bridged here by matching the settings:

* TRL clamps CISPO's weight at `epsilon_high` itself and has no lower bound; here the bounds are 1 - clip_low and
  1 + clip_high, as for the other losses. The same settings are clip_low = 1 and clip_high = epsilon_high - 1.
* TRL divides by the sample's sigma plus 1e-4; here it is the population's, and equality decides that a group is
  degenerate.
* TRL does not multiply the KL by the importance weights of the sampler; here it is multiplied by them. With the ratio
  of a sequence TRL corrects the KL by that; here it is always the token's, which is what makes it unbiased.
* TRL's entropy bonus is a mean over tokens whatever the loss; here it is aggregated as the policy loss is.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from trl import GRPOTrainer

from backend.training.algorithm.advantages import group_advantages
from backend.training.algorithm.objective import importance_cut, importance_weights, kl_tokens
from backend.training.algorithm.recipes import Cispo, Dapo, DrGrpo, Gspo, Mgrpo, Recipe

LENGTH = 9


class ShortDrGrpo(DrGrpo):
    """With TRL's constant in these tests."""

    length = LENGTH


BETA = 0.3
ENTROPY = 0.05


def trainer(**changes: Any) -> Any:
    """A GRPOTrainer that can compute a loss and advantages, and nothing else."""
    made: Any = object.__new__(GRPOTrainer)
    made.model = SimpleNamespace(training=True, is_gradient_checkpointing=False)
    made.args = SimpleNamespace(
        use_bias_correction_kl=True, delta=None, steps_per_generation=1, gradient_accumulation_steps=1,
        per_device_train_batch_size=4, gradient_checkpointing_kwargs=None,
    )  # fmt: skip
    made.accelerator = SimpleNamespace(
        num_processes=1, process_index=0, device=torch.device("cpu"), is_main_process=True, sync_gradients=True,
        gather=lambda x: x, reduce=lambda x, reduction: x,
    )  # fmt: skip
    plain: dict[str, Any] = {
        "aux_loss_enabled": False, "top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "beta": 0.0,
        "importance_sampling_level": "token", "loss_type": "grpo", "epsilon_low": 0.2, "epsilon_high": 0.2,
        "use_vllm": False, "vllm_importance_sampling_correction": False, "current_gradient_accumulation_steps": 1,
        "max_completion_length": LENGTH, "_entropy_bonus_enabled": False, "use_adaptive_entropy": False,
        "environment_factories": None, "environments": None, "tools": None, "pad_to_multiple_of": None,
        "mask_truncated_completions": False, "_is_vlm": False, "num_iterations": 1, "num_generations": 4,
        "multi_objective_aggregation": "sum_then_normalize", "scale_rewards": "group", "log_multimodal": False,
        "vllm_importance_sampling_clip_min": None, "_tokenizer": SimpleNamespace(pad_token_id=0),
        "chat_template_kwargs": {}, "eos_token_ids": [1], "_metrics": {"train": defaultdict(list)},
        "_pending_extra_logs": {}, "_pending_metrics": {},
        "_logs": {name: [] for name in ("prompt", "completion", "advantages")} | {"rewards": defaultdict(list)},
    }  # fmt: skip
    for name, value in (plain | changes).items():
        setattr(made, name, value)
    return made


class Batch:
    """Random log-probs of four calls of up to six tokens, with holes as tools' results leave them; (B, T) float64."""

    def __init__(self, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.new, old, ref, sampler = -3.0 * torch.rand(4, 4, 6, generator=rng, dtype=torch.float64)
        # Near the policy, so that some ratios are inside the clip and some outside.
        self.old, self.ref, self.sampler = (0.8 * self.new + 0.2 * other for other in (old, ref, sampler))
        self.new.requires_grad_()
        self.mask = torch.rand(4, 6, generator=rng) < 0.6
        self.mask[:, 1] = True
        self.advantages = torch.randn(4, generator=rng, dtype=torch.float64)
        self.entropy = torch.rand(4, 6, generator=rng, dtype=torch.float64)

    def theirs(self, importance: Tensor | None = None, **changes: Any) -> Tensor:
        made = trainer(**changes)
        if importance is not None:
            made.use_vllm = made.vllm_importance_sampling_correction = True
        made._get_per_token_logps_and_entropies = lambda *a, **k: (self.new, self.entropy, None)
        ids = torch.zeros(4, 6, dtype=torch.long)
        inputs = {
            "prompt_ids": ids[:, :1], "prompt_mask": ids[:, :1], "completion_ids": ids,
            "completion_mask": self.mask.long(), "advantages": self.advantages, "old_per_token_logps": self.old,
            "ref_per_token_logps": self.ref, "num_items_in_batch": self.mask.sum(),
            "importance_sampling_ratio": importance,
        }  # fmt: skip
        loss: Tensor = made._compute_loss(made.model, inputs)
        return loss

    def ours(
        self,
        kind: type[Recipe],
        kl: float = 0.0,
        clip: tuple[float, float] = (0.2, 0.2),
        importance: Tensor | None = None,
    ) -> Tensor:
        ones, recipe = torch.ones(4, dtype=torch.float64), kind(*clip)
        objective, _ = recipe.objective(self.new, self.old, self.mask, self.advantages, ones, importance)
        tokens = kl_tokens(self.new, self.old, self.ref, self.mask)
        return kl * recipe.aggregate(tokens, self.mask, ones) - objective

    def agree(self, ours: Tensor, theirs: Tensor) -> None:
        """Values and gradients with respect to the log-probs."""
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-6, abs=1e-9)
        gradients = [torch.autograd.grad(loss, self.new, retain_graph=True)[0] for loss in (ours, theirs)]
        torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-6, atol=1e-9)


SHARED: dict[str, type[Recipe]] = {"grpo": Mgrpo, "dapo": Dapo, "dr_grpo": ShortDrGrpo}
seeds = st.integers(0, 10_000)


@pytest.mark.parametrize("aggregation", SHARED)
@pytest.mark.parametrize("clip", [(0.2, 0.2), (0.2, 0.28), (0.05, 0.1)])
@given(seeds)
@settings(max_examples=20, deadline=None)
def test_losses(aggregation: str, clip: tuple[float, float], seed: int) -> None:
    batch = Batch(seed)
    low, high = clip
    batch.agree(
        batch.ours(SHARED[aggregation], clip=clip),
        batch.theirs(loss_type=aggregation, epsilon_low=low, epsilon_high=high),
    )


@pytest.mark.parametrize("bound", [1.05, 1.2, 5.0])
@given(seeds)
@settings(max_examples=20, deadline=None)
def test_cispo(bound: float, seed: int) -> None:
    batch = Batch(seed)
    ours = batch.ours(Cispo, clip=(1.0, bound - 1.0))
    batch.agree(ours, batch.theirs(loss_type="cispo", epsilon_high=bound))


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_the_ratio_of_a_sequence(seed: int) -> None:
    batch = Batch(seed)
    ours = batch.ours(Gspo, clip=(0.05, 0.1))
    batch.agree(ours, batch.theirs(importance_sampling_level="sequence", epsilon_low=0.05, epsilon_high=0.1))


def test_the_batches_reach_both_sides_of_every_bound() -> None:
    ones = torch.ones(4)
    for recipe in (Mgrpo(0.2, 0.28), Mgrpo(0.05, 0.1), Gspo(0.05, 0.1)):
        shares = []
        for batch in map(Batch, range(50)):
            _, stats = recipe.objective(batch.new, batch.old, batch.mask, batch.advantages, ones)
            shares.append(stats.clipped.double().mean().item())
        assert 0.1 < sum(shares) / len(shares) < 0.7
    cut = [
        importance_cut(importance_weights(b.old, b.sampler, b.mask, 1.3), 1.3)[b.mask] for b in map(Batch, range(50))
    ]
    assert 0.05 < torch.cat(cut).double().mean() < 0.7


@pytest.mark.parametrize("aggregation", SHARED)
@given(seeds)
@settings(max_examples=20, deadline=None)
def test_kl(aggregation: str, seed: int) -> None:
    batch = Batch(seed)
    batch.agree(batch.ours(SHARED[aggregation], kl=BETA), batch.theirs(loss_type=aggregation, beta=BETA))


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_entropy_of_the_means_over_tokens(seed: int) -> None:
    batch = Batch(seed)
    batch.entropy = (batch.new.exp() * batch.entropy).detach() + batch.new  # some function of the policy
    bonus = Dapo().aggregate(batch.entropy, batch.mask, torch.ones(4, dtype=torch.float64))
    theirs = batch.theirs(loss_type="dapo", _entropy_bonus_enabled=True, entropy_coef=ENTROPY)
    batch.agree(batch.ours(Dapo) - ENTROPY * bonus, theirs)


def generated(made: Any, batch: Batch, rewards: Tensor) -> dict[str, Tensor]:
    """What TRL makes of a batch that was sampled with `batch.sampler`, all six tokens of a call being the model's."""
    calls = len(rewards)
    ids = [[2] * 5 + [1]] * calls
    logps = batch.sampler.tolist() if calls == 4 else None
    made._generate = lambda prompts: ([[3]] * calls, ids, None, [""] * calls, logps, {}, None, None)
    made._calculate_rewards = lambda *a: rewards
    made._get_per_token_logps_and_entropies = lambda *a, **k: (batch.old, None, None)
    parts = rewards.shape[1]
    made.reward_funcs = made.reward_func_names = [f"part{i}" for i in range(parts)]
    with torch.no_grad():
        found: dict[str, Tensor] = made._generate_and_score_completions([{"prompt": "x"}] * calls)
    return found


@given(seeds, st.sampled_from([1.1, 1.3, 2.0]))
@settings(max_examples=20, deadline=None)
def test_importance_of_another_sampler(seed: int, cap: float) -> None:
    batch = Batch(seed)
    batch.mask[:] = True
    made = trainer(
        use_vllm=True, vllm_importance_sampling_correction=True, vllm_importance_sampling_mode="token_truncate",
        vllm_importance_sampling_clip_max=cap, vllm_importance_sampling_clip_min=None,
        reward_weights=torch.ones(1),
    )  # fmt: skip
    theirs = generated(made, batch, torch.arange(4.0)[:, None])["importance_sampling_ratio"]
    ours = importance_weights(batch.old.detach(), batch.sampler.detach(), batch.mask, cap)
    torch.testing.assert_close(ours, theirs.double(), rtol=1e-6, atol=1e-9)
    batch.agree(batch.ours(Dapo, importance=ours), batch.theirs(importance=ours, loss_type="dapo"))


@given(seeds)
@settings(max_examples=20, deadline=None)
def test_a_masked_call_counts_in_the_mean_over_calls_and_not_in_that_over_tokens(seed: int) -> None:
    batch = Batch(seed)
    batch.mask[0] = False  # as TRL masks a truncated completion
    for aggregation, recipe in SHARED.items():
        batch.agree(batch.ours(recipe), batch.theirs(loss_type=aggregation))


reward_rows = st.lists(st.integers(0, 20), min_size=8, max_size=8).map(lambda row: np.array(row) / 20.0)


def their_advantages(rewards: np.ndarray, coefficients: list[float], **changes: Any) -> np.ndarray:
    """TRL's advantages of two groups of four; rewards (8, parts)."""
    made = trainer(reward_weights=torch.tensor(coefficients, dtype=torch.float64), **changes)
    return generated(made, Batch(0), torch.from_numpy(rewards))["advantages"].numpy()


@given(reward_rows)
@settings(max_examples=50, deadline=None)
def test_advantages_without_sigma(rewards: np.ndarray) -> None:
    ours = np.concatenate([group_advantages(group, scale=False)[0] for group in np.split(rewards, 2)])
    assert ours == pytest.approx(their_advantages(rewards[:, None], [1.0], scale_rewards="none"), abs=1e-9)


@given(reward_rows)
@settings(max_examples=50, deadline=None)
def test_advantages_with_sigma_differ_by_its_convention_alone(rewards: np.ndarray) -> None:
    ours = []
    for group in np.split(rewards, 2):
        advantages, degenerate = group_advantages(group)
        to_sample_sigma = 0.0 if degenerate else group.std() / (group.std(ddof=1) + 1e-4)
        ours.append(advantages * to_sample_sigma)
    assert np.concatenate(ours) == pytest.approx(their_advantages(rewards[:, None], [1.0]), abs=1e-6)
