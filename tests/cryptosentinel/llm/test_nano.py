"""The tokenizer that is trained here, the model, and the folders they are kept in."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
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


def _remove(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _truncated_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])


def _edit_config(key: str, value: object) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {key: value}))

    return spoil


def _drop_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _other_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}")


def _other_tokens(folder: Path) -> None:
    text = (folder / "tokenizer.json").read_text().replace("<|im_start|>", "<|begin|>")
    (folder / "tokenizer.json").write_text(text)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_remove("config.json"), "no config.json"),
        (_remove("tokenizer.json"), "no tokenizer.json"),
        (_remove("model.safetensors"), "no .*safetensors"),
        (_remove("chat_template.jinja"), "no chat template"),
        (_pickled_weights, "pytorch_model.bin.*safetensors"),
        (_truncated_weights, "cannot be read"),
        (_edit_config("model_type", "llama"), "q_norm.weight is unknown"),
        (_edit_config("num_hidden_layers", 4), "cannot be read"),
        (_edit_config("intermediate_size", 100), "mlp.down_proj"),
        (_edit_config("tie_word_embeddings", False), "lm_head"),
        (_edit_config("hidden_size", "big"), "cannot be read"),
        (_drop_weight, "model.norm.weight"),
        (_other_template, "chat template"),
        (_other_tokens, r"splits <\|im_start\|>"),
    ],
)
def test_a_spoilt_folder_gets_a_clear_error(
    tmp_path: Path,
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    spoil: Callable[[Path], None],
    message: str,
) -> None:
    save_model(tmp_path / "model", model, tokenizer)
    spoil(tmp_path / "model")
    with pytest.raises(UserError, match=message):
        load_model(tmp_path / "model")


def test_a_missing_folder_gets_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model folder"):
        load_model(tmp_path / "nowhere")
