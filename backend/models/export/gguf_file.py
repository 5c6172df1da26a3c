"""A model's folder as a GGUF file for llama.cpp, written with llama.cpp's own package `gguf`.

That package has the writer and the table of the tensors' names, not the converter. This one knows the models that this
program trains: Qwen3, Qwen2 and Llama with a byte-level BPE tokenizer. Weights are in float32, as they were trained;
`llama-quantize` makes smaller files of it. How text is cut before the merges is code in llama.cpp, chosen by a name: a
tokenizer whose cut has none there is refused, because its tokens would be others.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

from simulator.errors import UserError

_ARCHITECTURES = {"qwen3": "qwen3", "qwen2": "qwen2", "llama": "llama"}
_NANO = {  # its merges hold no digit, sign or line break, so that cutting at runs of digits alone gives the same tokens
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "[0-9]|[+\\-]|\\n"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ],
}
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
_NOT_INSTALLED = "the package gguf of llama.cpp is not installed: run `pip install 'cryptosentinel[gguf]'` first"


def refuse_gguf(base: Path) -> None:
    """Raise `UserError` where no GGUF file can be made of models on this base: before any work is done."""
    if importlib.util.find_spec("gguf") is None:
        raise UserError(_NOT_INSTALLED)
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    kind = config.get("model_type")
    if kind not in _ARCHITECTURES or config.get("rope_scaling"):
        raise UserError(
            f"{base} is a model of kind {kind}, and GGUF files are written of {', '.join(_ARCHITECTURES)} without "
            "scaled rope: export it with --as merged, and use llama.cpp's convert_hf_to_gguf.py"
        )
    _cut_of(_tokenizer(base), base)


def write_gguf(folder: Path, file: Path, name: str) -> None:
    """Write the model in `folder` to `file`, whole or not at all. Raises as `refuse_gguf` does."""
    refuse_gguf(folder)
    import gguf
    from safetensors.numpy import load_file

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tensors = {key: value for part in sorted(folder.glob("*.safetensors")) for key, value in load_file(part).items()}
    architecture = _ARCHITECTURES[config["model_type"]]
    arch = next(one for one, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    unfinished = file.with_name(f".{file.name}.tmp")
    writer = gguf.GGUFWriter(unfinished, architecture)
    writer.add_name(name)
    _describe(writer, config, gguf)
    _add_tokenizer(writer, folder, config, gguf)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for key in sorted(tensors):
        if key == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        known = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if known is None:
            raise UserError(f"{folder}: llama.cpp has no tensor for {key} in a {architecture} model")
        writer.add_tensor(known, _permuted(key, tensors[key], config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    unfinished.replace(file)


def _describe(writer: Any, config: dict[str, Any], gguf: Any) -> None:
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads", heads))
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta", 10_000.0))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)


def _add_tokenizer(writer: Any, folder: Path, config: dict[str, Any], gguf: Any) -> None:
    document = _tokenizer(folder)
    kinds = gguf.TokenType
    tokens = [f"[PAD{number}]" for number in range(config["vocab_size"])]
    types = [kinds.UNUSED] * len(tokens)
    for text, number in document["model"]["vocab"].items():
        tokens[number], types[number] = text, kinds.NORMAL
    ids = {}
    for added in document["added_tokens"]:
        tokens[added["id"]], ids[added["content"]] = added["content"], added["id"]
        types[added["id"]] = kinds.CONTROL if added["special"] else kinds.USER_DEFINED
    merges = [one if isinstance(one, str) else " ".join(one) for one in document["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_cut_of(document, folder))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    stated = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    for key, add in (("eos_token", writer.add_eos_token_id), ("pad_token", writer.add_pad_token_id)):
        text = stated.get(key)
        text = text.get("content") if isinstance(text, dict) else text
        if text in ids:
            add(ids[text])
    writer.add_add_bos_token(False)
    template = folder / "chat_template.jinja"
    text = template.read_text(encoding="utf-8") if template.is_file() else stated.get("chat_template")
    if isinstance(text, str):
        writer.add_chat_template(text)


def _tokenizer(folder: Path) -> dict[str, Any]:
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError(f"{folder} has no tokenizer.json, of which a GGUF file's tokens are made: put it there")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def _cut_of(document: dict[str, Any], where: Path) -> str:
    """llama.cpp's name for how a tokenizer cuts text before the merges. Raises `UserError` where it has none."""
    cut = document.get("pre_tokenizer") or {}
    parts = cut.get("pretokenizers", [cut])
    if document["model"].get("type") == "BPE":
        if cut == _NANO:
            return "superbpe"
        patterns = [part["pattern"].get("Regex") for part in parts if part.get("type") == "Split"]
        if patterns in ([_QWEN], [_LLAMA3]) and parts[-1].get("type") == "ByteLevel":
            return "qwen2" if patterns == [_QWEN] else "llama-bpe"
        if [part.get("type") for part in parts] == ["Digits", "ByteLevel"] and parts[0].get("individual_digits"):
            return "smollm"
        if [part.get("type") for part in parts] == ["ByteLevel"] and parts[0].get("use_regex", True):
            return "gpt-2"
    raise UserError(
        f"{where}: llama.cpp has no name that is known here for how its tokenizer cuts text, so a GGUF file would have "
        "other tokens: export it with --as merged, and use llama.cpp's convert_hf_to_gguf.py"
    )


def _permuted(key: str, tensor: Any, config: dict[str, Any]) -> Any:
    """Llama's queries and keys with the two halves of each head interleaved, as llama.cpp turns them."""
    if config["model_type"] != "llama" or key.split(".")[-2] not in ("q_proj", "k_proj"):
        return tensor
    heads = config["num_attention_heads"]
    if ".k_proj." in key:
        heads = config.get("num_key_value_heads", heads)
    split = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return split.swapaxes(1, 2).reshape(tensor.shape)
