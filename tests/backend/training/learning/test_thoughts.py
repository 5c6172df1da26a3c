"""Training on conversations with thoughts: those that are not learnt have no gradient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from backend.policies.logprobs import token_logps
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.trajectory import Trajectory
from backend.training.learning.role_trainer import RoleTrainer
from tests.standard_settings import trainer_settings

FREE = trainer_settings(learning_rate=1e-2, warmup_steps=1, max_grad_norm=1e9)
VOCABULARY = 40  # of the tiny model


def policies_of(tiny: Qwen3ForCausalLM) -> RolePolicies:
    policies = RolePolicies(tiny, ("manager",))
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policies.trainable("manager"):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=rng))
    return policies


def trajectory(policies: RolePolicies, seed: int, length: int) -> Trajectory:
    """A prompt, and sampled tokens at its end."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, VOCABULARY, 6 + length).astype(np.int32)
    mask = np.repeat([False, True], [6, length])
    with torch.no_grad():
        logps = policies.logps("manager", torch.from_numpy(ids).long()[None], torch.from_numpy(mask)[None])[0][0]
    return Trajectory("manager", "q0", seed, 0, ids, mask, logps.numpy(), "v", True, 1.0, None, False, thought_tokens=1)


def test_thoughts_that_are_not_learnt_have_no_gradient(tiny: Qwen3ForCausalLM, gradients: list[list[Tensor]]) -> None:
    """With all that was sampled masked but the answer, other thoughts of the same ids change nothing but what the
    answer is given; with nothing left, nothing moves."""
    policies = policies_of(tiny)
    whole = trajectory(policies, 3, 6)
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
