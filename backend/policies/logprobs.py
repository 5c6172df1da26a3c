"""Log-probabilities of sampled tokens under a policy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from backend.policies.prefix_tree import in_family, pick, sampled_states


def token_logps(
    model: PreTrainedModel, ids: Tensor, mask: Tensor, temperature: float = 1.0, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-prob of each sampled token given its prefix, and the entropy it was drawn at; both (B, T), 0 where masked.

    ids (B, T) int64 padded on the right, mask (B, T) bool with column 0 False. Both are those of the distribution
    scaled by `temperature`, as the engine samples. Logits exist only at sampled positions, (sampled, vocabulary): the
    hidden states are gathered before the output layer. The model itself makes the logits, so that what an architecture
    does after its output layer is done. The entropy carries a gradient only when asked to. What the
    rows have in common is computed once, where that saves enough (`shared_prefixes`).
    """
    if temperature <= 0.0:
        raise ValueError(f"log-probs need a temperature above 0, not {temperature}")
    mask = mask.to(ids.device)
    shared = sampled_states(model, ids, mask)
    if shared is not None:
        logits, targets = model.get_output_embeddings()(shared.states).float(), shared.targets  # (sampled, V)
    else:
        logits, targets = _plain(model, ids, mask)
    if temperature != 1.0:  # the logits are the largest tensor here: no pass over them for nothing
        logits = logits / temperature
    logps, entropy = _OfTargets.apply(logits, targets, entropy_gradient)
    if shared is not None:
        logps, entropy = pick(logps, shared.index), pick(entropy, shared.index)
    blank = torch.zeros(ids.shape, device=ids.device)
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


def _plain(model: PreTrainedModel, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Logits (sampled, V) and targets (sampled,) by a plain pass over each conversation."""
    picked = mask[:, 1:]
    targets = ids[:, 1:][picked]
    # No attention mask: attention is causal and the padding is on the right.
    head = model.get_output_embeddings()
    if in_family(model):
        hidden = model.get_decoder()(input_ids=ids[:, :-1], use_cache=False).last_hidden_state  # (B, T - 1, H)
        return head(hidden[picked]).float(), targets

    if head is None:
        whole: Tensor = model(input_ids=ids[:, :-1], use_cache=False).logits
        return whole[picked].float(), targets

    def gather(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (inputs[0][picked][None], *inputs[1:])

    # What follows the output layer (a cap, a scale) is the model's own and works on each logit alone.
    hook = head.register_forward_pre_hook(gather)
    try:
        logits: Tensor = model(input_ids=ids[:, :-1], use_cache=False).logits[0]
    finally:
        hook.remove()
    return logits.float(), targets
