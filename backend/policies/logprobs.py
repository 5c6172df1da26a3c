"""Log-probabilities of sampled tokens under a policy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from backend.policies.fused_blocks import of_any_length
from backend.policies.prefix_tree import in_family, pick, sampled_states, sent


def token_logps(
    model: PreTrainedModel,
    ids: Tensor,
    mask: Tensor,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    compiled: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each sampled token given its prefix, and the entropy it was drawn at; both (B, T), 0 where masked.

    ids (B, T) int64 padded on the right, mask (B, T) bool with column 0 False, wherever they are: best on the CPU, from
    where a GPU is given them without waiting for it. Both results are those of the distribution
    scaled by `temperature`, as the engine samples. Logits exist only at sampled positions, (sampled, vocabulary): the
    hidden states are gathered before the output layer. The model itself makes the logits, so that what an architecture
    does after its output layer is done. The entropy carries a gradient only when asked to. What the
    rows have in common is computed once, where that saves enough (`shared_prefixes`). `compiled` does the passes over
    the logits by kernels that torch compiles.
    """
    if temperature <= 0.0:
        raise ValueError(f"log-probs need a temperature above 0, not {temperature}")
    ids, mask = ids.cpu(), mask.cpu()
    shared = sampled_states(model, ids, mask)
    if shared is not None:
        logits, targets = model.get_output_embeddings()(shared.states), shared.targets  # (sampled, V)
    else:
        logits, targets = _plain(model, ids, mask)
    if compiled:
        logps, entropy = _Compiled.apply(logits, targets, temperature, entropy_gradient)
    else:
        logits = logits.float()
        if temperature != 1.0:  # the logits are the largest tensor here: no pass over them for nothing
            logits = logits / temperature
        logps, entropy = _OfTargets.apply(logits, targets, entropy_gradient)
    if shared is not None:
        logps, entropy = pick(logps, shared.index), pick(entropy, shared.index)
    blank, mask = torch.zeros(ids.shape, device=model.device), sent(mask, model.device)
    return blank.masked_scatter(mask, logps), blank.masked_scatter(mask, entropy)


class _OfTargets(torch.autograd.Function):
    """Log-prob of a target under softmax and the entropy of softmax, in as few passes over the logits as there can be:
    they are the largest tensor of a step."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        """`logits` z (U, V) and `targets` (U,); log-probs and entropies (U, 1)."""
        target = targets.unsqueeze(-1)
        shifted = logits - logits.amax(-1, keepdim=True)
        probs = shifted.exp()
        total = probs.sum(-1, keepdim=True)
        logps = shifted.gather(-1, target) - total.log()
        # H = log sum e^s - sum p s; an s of minus infinity, whose p is 0, adds nothing.
        entropy = total.log() - shifted.mul_(probs).nan_to_num_(0.0).sum(-1, keepdim=True) / total
        ctx.save_for_backward(probs.div_(total), target, entropy)
        ctx.entropy_gradient = entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logps, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """d logp / d z_j = 1[j is the target] - p_j, and dH / d z_j = -p_j (log p_j + H)."""
        probs, target, entropy = ctx.saved_tensors
        of_logps, of_entropy = grads
        of_logits = probs * -of_logps
        of_logits.scatter_add_(-1, target, of_logps)
        if ctx.entropy_gradient:
            of_logits -= torch.special.xlogy(probs, probs).add_(probs * entropy).mul_(of_entropy)
        return of_logits, None, None


@torch.compile
def _fused(logits: Tensor, target: Tensor, temperature: float) -> tuple[Tensor, Tensor, Tensor]:
    """Log-prob of the target, entropy and logarithm of the partition function (U, 1) of logits (U, V)."""
    scaled = logits.float() / temperature
    total = scaled.logsumexp(-1, keepdim=True)
    shifted = scaled - total
    probs = shifted.exp()
    entropy = -torch.where(probs > 0.0, probs * shifted, 0.0).sum(-1, keepdim=True)
    return shifted.gather(-1, target), entropy, total


@torch.compile
def _fused_gradient(
    logits: Tensor,
    target: Tensor,
    temperature: float,
    total: Tensor,
    entropy: Tensor,
    of_logps: Tensor,
    of_entropy: Tensor | None,
) -> Tensor:
    """As `_OfTargets.backward`, in the numbers of the logits."""
    shifted = logits.float() / temperature - total
    probs = shifted.exp()
    hit = torch.arange(logits.shape[-1], device=logits.device) == target
    of_logits = torch.where(hit, of_logps, 0.0) - probs * of_logps
    if of_entropy is not None:
        of_logits = of_logits - torch.where(probs > 0.0, probs * (shifted + entropy), 0.0) * of_entropy
    return (of_logits / temperature).to(logits.dtype)


class _Compiled(torch.autograd.Function):
    """What `_OfTargets` is, of logits as the output layer makes them, which alone are kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, temperature: float, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        """`logits` (U, V) before the temperature and `targets` (U,); log-probs and entropies (U, 1)."""
        target = of_any_length(targets.contiguous().unsqueeze(-1))
        logps, entropy, total = _fused(of_any_length(logits), target, temperature)
        ctx.save_for_backward(logits, target, total, entropy)
        ctx.temperature, ctx.entropy_gradient = temperature, entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return logps, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of the logits."""
        logits, target, total, entropy = (of_any_length(one) for one in ctx.saved_tensors)
        of_logps = of_any_length(grads[0])
        of_entropy = of_any_length(grads[1]) if ctx.entropy_gradient else None
        of_logits = _fused_gradient(logits, target, ctx.temperature, total, entropy, of_logps, of_entropy)
        return of_logits, None, None, None


def _plain(model: PreTrainedModel, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (sampled, V) and targets (sampled,) by a plain pass over each conversation."""
    picked = mask[:, 1:]
    targets = sent(ids[:, 1:][picked], model.device)
    places = sent(picked.flatten().nonzero()[:, 0], model.device)
    ids = sent(ids[:, :-1], model.device)
    # No attention mask: attention is causal and the padding is on the right.
    head = model.get_output_embeddings()
    if in_family(model):
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state  # (B, T - 1, H)
        return head(hidden.flatten(0, 1).index_select(0, places)), targets

    if head is None:
        whole: Tensor = model(input_ids=ids, use_cache=False).logits
        return whole.flatten(0, 1).index_select(0, places), targets

    def gather(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (inputs[0].flatten(0, 1).index_select(0, places)[None], *inputs[1:])

    # What follows the output layer (a cap, a scale) is the model's own and works on each logit alone.
    hook = head.register_forward_pre_hook(gather)
    try:
        logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    finally:
        hook.remove()
    return logits, targets
