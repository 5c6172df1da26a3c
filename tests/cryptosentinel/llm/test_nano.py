"""The tokenizer that is trained here, the model, and the folders they are kept in."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from cryptosentinel.llm.chat_codec import SPECIAL_TOKENS, ChatCodec
from cryptosentinel.llm.nano import load_model, nano_config, new_nano, save_model, train_tokenizer
from simulator.errors import UserError

TEXTS = [f'{{"name": "consult_market_analyst", "arguments": {{"symbol": "{coin}USDT"}}}}' for coin in "ABCD"] * 20


@given(text=st.text(max_size=60))
def test_tokenizer_is_lossless(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_signs_and_newlines_stand_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    learned = set(tokenizer.get_vocab()) - set(SPECIAL_TOKENS)
    alone = [token for token in learned if any(character in "0123456789+-Ċ" for character in token)]
    assert sorted(alone) == sorted("0123456789+-Ċ")
    assert tokenizer.tokenize("AAAUSDT return +3.07") == ["AAAUSDTĠreturnĠ", "+", "3", ".", "0", "7"]


def test_fixed_text_becomes_few_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer.encode('{"name": "consult_market_analyst", "arguments": {"symbol": "AAAUSDT"}}')) <= 2


def test_special_tokens_are_never_learned_as_text() -> None:
    tokenizer = train_tokenizer(["<|im_start|>user\nhello<|im_end|>\n<tool_call>\nhello\n</tool_call>"] * 50)
    assert not any("<" in token and len(token) > 1 for token in set(tokenizer.get_vocab()) - set(SPECIAL_TOKENS))


def test_vocabulary_is_bounded_and_reproducible() -> None:
    tokenizer = train_tokenizer(TEXTS, vocab_size=270)
    assert len(tokenizer) == 270
    assert tokenizer.get_vocab() == train_tokenizer(TEXTS, vocab_size=270).get_vocab()
    with pytest.raises(UserError, match="265"):
        train_tokenizer(TEXTS, vocab_size=264)


def test_nano_has_about_a_million_parameters_and_depends_on_its_seed_only() -> None:
    config = nano_config(1024)
    torch.manual_seed(1)
    expected_next = torch.rand(1)
    torch.manual_seed(1)
    first = new_nano(3, config)
    assert torch.equal(torch.rand(1), expected_next)
    again, other = new_nano(3, config).state_dict(), new_nano(4, config).state_dict()
    assert 800_000 < sum(weight.numel() for weight in first.parameters()) < 1_100_000
    assert all(torch.equal(weight, again[name]) for name, weight in first.state_dict().items())
    assert not torch.equal(again["model.embed_tokens.weight"], other["model.embed_tokens.weight"])


def test_saved_model_is_the_model(
    tmp_path: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, codec: ChatCodec
) -> None:
    folder = tmp_path / "model"
    save_model(folder, new_nano(0, model.config), tokenizer)
    save_model(folder, model, tokenizer)  # replaces the first
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert not [path for path in folder.iterdir() if path.suffix in (".bin", ".pt")]
    loaded, loaded_tokenizer = load_model(folder)
    assert not loaded.training and loaded.dtype == torch.float32
    assert all(torch.equal(weight, loaded.state_dict()[name]) for name, weight in model.state_dict().items())
    assert loaded_tokenizer.get_vocab() == tokenizer.get_vocab()
    assert ChatCodec(loaded_tokenizer).start("a", "<b>") == codec.start("a", "<b>")


def test_a_missing_folder_gets_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model folder"):
        load_model(tmp_path / "nowhere")
