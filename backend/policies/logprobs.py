"""Log-probabilities of sampled tokens under a policy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
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
    log_probs = functional.log_softmax(logits, -1)
    logps = log_probs.gather(-1, targets.unsqueeze(-1))
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(log_probs.exp() * log_probs).sum(-1, keepdim=True)
    if shared is not None:
        logps, entropy = pick(logps, shared.index), pick(entropy, shared.index)
    blank = torch.zeros(ids.shape, device=ids.device)
    return blank.masked_scatter(mask, logps), blank.masked_scatter(mask, entropy)


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
