"""Training on conversations with thoughts: branches of a call, and thoughts that are not learnt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from backend.policies.logprobs import token_logps
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.recipes import DrGrpo
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.role_trainer import RoleTrainer
from tests.standard_settings import changed, trainer_settings

FREE = trainer_settings(learning_rate=1e-2, warmup_steps=1, max_grad_norm=1e9)
VOCABULARY = 40  # of the tiny model


def policies_of(tiny: Qwen3ForCausalLM) -> RolePolicies:
    policies = RolePolicies(tiny, ("manager",))
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policies.trainable("manager"):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=rng))
    return policies


def branched(policies: RolePolicies, seed: int, lengths: tuple[int, ...]) -> Trajectory:
    """A call whose branches begin alike: a prompt, and in each some sampled tokens at its end."""
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, VOCABULARY, 6).astype(np.int32)
    parts: list[npt.NDArray[np.int32]] = []
    masks: list[npt.NDArray[np.bool_]] = []
    starts: list[int] = []
    for number, length in enumerate(lengths):
        starts.append(sum(len(part) for part in parts))
        heard = rng.integers(0, VOCABULARY, 2 * number).astype(np.int32)
        parts.append(np.concatenate([prompt, heard, rng.integers(0, VOCABULARY, length).astype(np.int32)]))
        masks.append(np.repeat([False, True], [len(prompt) + len(heard), length]))
    ids, mask = np.concatenate(parts), np.concatenate(masks)
    logps = np.zeros(len(ids), np.float32)
    for start, part, own in zip(starts, parts, masks, strict=True):
        with torch.no_grad():
            found = policies.logps("manager", torch.from_numpy(part).long()[None], torch.from_numpy(own)[None])[0][0]
        logps[start : start + len(part)] = found.numpy()
    return Trajectory(
        "manager", "q0", seed, 0, ids, mask, logps, "v", True, 1.0, None, False, starts=tuple(starts), thought_tokens=1
    )


@pytest.mark.parametrize("how", ["mgrpo", "dapo", "dr_grpo"])
def test_branches_are_one_call_to_the_objective(
    tiny: Qwen3ForCausalLM, gradients: list[list[Tensor]], how: str
) -> None:
    """Equal to plain transformers on the branches: each sampled token once, behind what it was sampled behind, and by
    the call's own denominator."""
    policies = policies_of(tiny)
    batch = [branched(policies, seed, lengths) for seed, lengths in enumerate([(3, 2, 4), (5,), (2, 6)])]
    advantages, weights = [0.7, -1.2, 0.4], [0.5, 0.25, 0.25]
    tokens = [int(one.mask.sum()) for one in batch]
    loss = torch.zeros(())
    for one, advantage, weight, count in zip(batch, advantages, weights, tokens, strict=True):
        stops = (*one.starts[1:], len(one.ids))
        for start, stop in zip(one.starts, stops, strict=True):
            ids = torch.from_numpy(one.ids[start:stop]).long()[None]
            mask = torch.from_numpy(one.mask[start:stop])[None]
            logps = token_logps(policies.activate("manager"), ids, mask)[0].sum()
            loss = loss - weight * advantage * (logps / count if how == "mgrpo" else logps)
    denominator = {
        "mgrpo": sum(weights),
        "dr_grpo": DrGrpo.length * sum(weights),
        "dapo": float(np.dot(weights, tokens)),
    }[how]
    want = torch.autograd.grad(loss / denominator, policies.trainable("manager"))
    settings = changed(FREE, recipe=how)
    metrics = RoleTrainer(policies, "manager", settings).step(batch, advantages, weights)
    for got, wanted in zip(gradients[0], want, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)
    assert metrics["manager/trained"] == 3.0 and metrics["manager/tokens"] == sum(tokens)
    assert metrics["manager/engine_gap"] < 1e-5


@pytest.mark.parametrize("tokens", [10_000, 40, 1])
def test_micro_batches_and_minibatches_of_branches(tiny: Qwen3ForCausalLM, tokens: int) -> None:
    policies = policies_of(tiny)
    batch = [branched(policies, seed, (3, 2)) for seed in range(4)]
    settings = changed(FREE, micro_batch_tokens=tokens, minibatches=2)
    metrics = RoleTrainer(policies, "manager", settings).step(batch, [1.0, -1.0, 0.5, -0.5], [0.25] * 4)
    assert metrics["manager/updates"] == 2.0 and metrics["manager/tokens"] == 20.0


def test_thoughts_that_are_not_learnt_have_no_gradient(tiny: Qwen3ForCausalLM, gradients: list[list[Tensor]]) -> None:
    """With all that was sampled masked but the answer, other thoughts of the same ids change nothing but what the
    answer is given; with nothing left, nothing moves."""
    policies = policies_of(tiny)
    whole = branched(policies, 3, (6,))
    thought = np.flatnonzero(whole.mask)[:4]
    mask, logps = whole.mask.copy(), whole.sampled_logps.copy()
    mask[thought], logps[thought] = False, 0.0
    answer = replace(whole, mask=mask, sampled_logps=logps)
    ids, own = torch.from_numpy(answer.ids).long()[None], torch.from_numpy(answer.mask)[None]
    loss = -token_logps(policies.activate("manager"), ids, own)[0].sum() / 2
    want = torch.autograd.grad(loss, policies.trainable("manager"))
    RoleTrainer(policies, "manager", FREE).step([answer], [1.0], [1.0])
    for got, wanted in zip(gradients[0], want, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-6)
    nothing = replace(whole, mask=np.zeros_like(mask), sampled_logps=np.zeros_like(logps))
    assert RoleTrainer(policies, "manager", FREE).step([nothing], [1.0], [1.0])["manager/updates"] == 0.0


def test_branches_that_do_not_fit_are_refused() -> None:
    plain = {"mask": np.array([False, True]), "sampled_logps": np.zeros(2, np.float32)}
    for starts in ((), (1,), (0, 0), (0, 3)):
        with pytest.raises(ValueError, match=r"branches that begin|cannot have been sampled"):
            Trajectory(
                "manager", "q", 0, 0, np.zeros(2, np.int32), plain["mask"], plain["sampled_logps"], "v", True, 1.0,
                None, False, starts=starts,
            )  # fmt: skip
