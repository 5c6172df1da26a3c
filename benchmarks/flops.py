"""Floating-point operations that a training step needs, and what GPUs can do in a second: for model FLOP utilisation.

As in appendix B of PaLM (arXiv 2204.02311) and section 2.1 of Kaplan et al. (arXiv 2001.08361): a matrix of n numbers
takes 2 n operations a token forward, 2 n for the gradient of its input and 2 n for its own. So a model of which all is
trained takes 6 n a token; one whose base is frozen takes 4 n for the base and 6 for each number of the adapters.
Embeddings are looked up and count nothing. The output layer counts for sampled tokens only, since logits are made
nowhere else; it is frozen with the base. Attention takes 4 T Q operations a token and block forward at T tokens (scores
and mix, 2 T Q each), half of them where it is causal, and twice as much backward, as it has no weights. What gradient
checkpointing computes again is not counted: it is no work of the model's.
"""

from __future__ import annotations

from typing import Literal

from backend.models.shape import Shape

# Dense bfloat16 operations a second, of NVIDIA's data sheets, by a part of the card's name; the more special first.
PEAKS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
}


def training_flops(
    shape: Shape, length: int, sampled: int, rank: int, weights: Literal["lora", "full"] = "lora"
) -> float:
    """Operations, forward and backward, for a conversation of `length` tokens of which `sampled` are learnt from, with
    an adapter of `rank` on all linear layers, or with the whole model trained."""
    linears = shape.linear_numbers
    head = shape.embedding
    attention = 3 * shape.layers * 4 * shape.queries * length * length / 2
    if weights == "full":
        return 6.0 * (linears * length + head * sampled) + attention
    return 4.0 * (linears * length + head * sampled) + 6.0 * shape.adapter(rank) * length + attention
