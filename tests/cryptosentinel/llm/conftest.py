"""A tokenizer and a random model, small enough to be made for each test run."""

import random
from collections.abc import Callable

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from cryptosentinel.llm.chat_codec import ChatCodec
from cryptosentinel.llm.nano import nano_config, new_nano, train_tokenizer


def transcripts(count: int) -> list[str]:
    """Texts as the teacher writes them, numbers and choices varied."""
    rng = random.Random(0)
    return [
        "<|im_start|>system\nYou are DeepTraderManager.<|im_end|>\n<|im_start|>user\n"
        f"{rng.choice('ABCD') * 3}USDT return {rng.uniform(-9, 9):+.2f} volatility {rng.uniform(0, 9):.1f}<|im_end|>\n"
        '<|im_start|>assistant\n<tool_call>\n{"name": "consult_market_analyst", "arguments": {"symbol": "AAAUSDT"}}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n"
        f'{{"up": 0.{rng.randrange(99)}, "down": 0.{rng.randrange(99)}}}\n</tool_response><|im_end|>\n'
        for _ in range(count)
    ]


def lively(config: Qwen3Config) -> Qwen3ForCausalLM:
    """A random model whose norms are far from 1, unlike a fresh one's."""
    model = new_nano(7, config)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator))
    return model


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(transcripts(200), vocab_size=512)


@pytest.fixture(scope="session")
def codec(tokenizer: PreTrainedTokenizerFast) -> ChatCodec:
    return ChatCodec(tokenizer)


@pytest.fixture(scope="session")
def make_model() -> Callable[[Qwen3Config], Qwen3ForCausalLM]:
    return lively


@pytest.fixture(scope="session")
def model(tokenizer: PreTrainedTokenizerFast) -> Qwen3ForCausalLM:
    return lively(nano_config(len(tokenizer), hidden_size=64, layers=3, intermediate_size=96, max_positions=512))
