"""Log-probabilities of sampled tokens under a policy."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from backend.policies.prefix_tree import pick, sampled_states


def token_logps(
    model: PreTrainedModel, ids: Tensor, mask: Tensor, temperature: float = 1.0, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-prob of each sampled token given its prefix, and the entropy it was drawn at; both (B, T), 0 where masked.

    ids (B, T) int64 padded on the right, mask (B, T) bool with column 0 False. Both are those of the distribution
    scaled by `temperature`, as the engine samples. Logits exist only at sampled positions, (sampled, vocabulary): the
    hidden states are gathered before the output layer. The entropy carries a gradient only when asked to. What the
    rows have in common is computed once, where that saves enough (`shared_prefixes`).
    """
    if temperature <= 0.0:
        raise ValueError(f"log-probs need a temperature above 0, not {temperature}")
    mask = mask.to(ids.device)
    shared = sampled_states(model, ids, mask)
    if shared is None:
        # No attention mask: attention is causal and the padding is on the right.
        hidden = model.get_decoder()(input_ids=ids[:, :-1], use_cache=False).last_hidden_state  # (B, T - 1, H)
        picked = mask[:, 1:]
        states, targets = hidden[picked], ids[:, 1:][picked]
    else:
        states, targets = shared.states, shared.targets
    logits = model.get_output_embeddings()(states).float()  # (sampled, V)
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
