"""Folders of models, whole and spoilt: a spoilt one is refused in a sentence that names what is wrong.

Nothing that may hold code is read.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from cryptosentinel.llm.model_files import check_folder, names_code, unsafe_files, weight_files
from cryptosentinel.llm.nano import load_model, save_model
from simulator.errors import UserError

Spoil = Callable[[Path], object]


@pytest.fixture
def folder(tmp_path: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Path:
    save_model(tmp_path / "model", model, tokenizer)
    return tmp_path / "model"


def shard(folder: Path) -> None:
    """Into files of about 100 kB, as large models come."""
    model, _ = load_model(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="100KB")
    assert len(list(folder.glob("*-of-*"))) > 2


def sharded(spoil: Spoil) -> Spoil:
    def change(folder: Path) -> None:
        shard(folder)
        spoil(folder)

    return change


def edit(name: str, **changes: Any) -> Spoil:
    """Change fields of a JSON file."""

    def change(folder: Path) -> None:
        (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **changes}))

    return change


def write(name: str, content: str | bytes) -> Spoil:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def remove(pattern: str) -> Spoil:
    return lambda folder: sorted(folder.glob(pattern))[0].unlink()


def remapped(**changes: str) -> Spoil:
    def change(folder: Path) -> None:
        document = json.loads((folder / INDEX).read_text())
        document["weight_map"] |= {name.replace("_", "."): file for name, file in changes.items()}
        (folder / INDEX).write_text(json.dumps(document))

    return change


def cut(keep: int) -> Spoil:
    return lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:keep])


def weights_folder(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    (folder / WEIGHTS).mkdir()


def another_token(folder: Path) -> None:
    document = json.loads((folder / TOKENIZER).read_text())
    last = document["added_tokens"][-1]
    document["added_tokens"].append(last | {"id": 9999, "content": "<|more|>"})
    (folder / TOKENIZER).write_text(json.dumps(document))


def less(folder: Path) -> None:
    weights = load_file(folder / WEIGHTS)
    del weights["model.norm.weight"]
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def other_tokens(folder: Path) -> None:
    (folder / TOKENIZER).write_text((folder / TOKENIZER).read_text().replace("<|im_start|>", "<|begin|>"))


def untied(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"] + 1.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


CONFIG, INDEX, TOKENIZER, TEMPLATE, WEIGHTS = (
    "config.json", "model.safetensors.index.json", "tokenizer.json", "chat_template.jinja", "model.safetensors",
)  # fmt: skip
SPOILT: dict[str, tuple[Spoil, str]] = {
    "config is not JSON": (write(CONFIG, "{"), "config.json is not JSON"),
    "config is a list": (write(CONFIG, "[]"), "config.json is not a JSON object"),
    "config nests without end": (write(CONFIG, "[" * 100_000), "config.json is not JSON"),
    "another architecture": (edit(CONFIG, model_type="llama"), r"unexpected keys .*q_norm\.weight"),
    "an architecture that nobody knows": (edit(CONFIG, model_type="qwen17"), "'qwen17', which trans.* not know"),
    "an encoder": (edit(CONFIG, model_type="bert"), "bert is not a causal language model"),
    "an encoder and a decoder": (edit(CONFIG, model_type="t5"), "t5 has an encoder and a decoder"),
    "no architecture": (edit(CONFIG, model_type=None), "of type None"),
    "a size is a word": (edit(CONFIG, hidden_size="big"), "config.json cannot be read"),
    "a negative size": (edit(CONFIG, hidden_size=-4), "a size of -4"),
    "no key heads": (edit(CONFIG, num_key_value_heads=0), "a size of 0"),
    "unknown activation": (edit(CONFIG, hidden_act="nope"), "cannot be (built|read)"),
    "unknown rotation": (edit(CONFIG, rope_parameters={"rope_type": "nope"}), "cannot be (built|read)"),
    "more embeddings than memory": (edit(CONFIG, vocab_size=10**12), r"describes a model of 64,\d+"),
    "layers without end": (edit(CONFIG, num_hidden_layers=10**9, layer_types=None), "at most 1000 are read"),
    "a layer less": (edit(CONFIG, num_hidden_layers=2, layer_types=None), r"unexpected keys model\.layers\.2\."),
    "other heads": (edit(CONFIG, num_key_value_heads=4), r"mismatched keys .*k_proj\.weight"),
    "a weight less": (less, "model.norm.weight"),
    "another width": (edit(CONFIG, intermediate_size=100), "mlp.down_proj"),
    "output layer of its own": (edit(CONFIG, tie_word_embeddings=False), "lm_head"),
    "two output layers": (untied, "tie_word_embeddings to false"),
    "weights cut short": (cut(-9), "cut short"),
    "weights are a folder": (weights_folder, "holds no model.safetensors"),
    "only a pickle": (lambda f: (f / WEIGHTS).rename(f / "pytorch_model.bin"), "pytorch_model.bin, which may"),
    "a shard is missing": (sharded(remove("*-00002-of-*")), r"lacks 1 of its \d+ weight files \(model-00002"),
    "a shard is cut": (sharded(write("model-00002-of-00007.safetensors", b"{}")), "cut short"),
    "no index": (sharded(remove(INDEX)), f"no {INDEX}"),
    "the index is not JSON": (sharded(write(INDEX, "{")), "is not JSON"),
    "the index is empty": (sharded(edit(INDEX, weight_map={})), "has no weight_map"),
    "the index leads outside": (sharded(remapped(x="../model.safetensors")), r"not a \*\.safetensors file"),
    "the index names a pickle": (sharded(remapped(x="x.bin")), "names 'x.bin'"),
    "the index promises too much": (sharded(remapped(x="model-00001-of-00007.safetensors")), "does not hold x"),
    "no tokenizer": (remove(TOKENIZER), "holds no tokenizer.json"),
    "tokenizer is not JSON": (write(TOKENIZER, "{"), "tokenizer.json is not JSON"),
    "tokenizer's settings are not JSON": (write("tokenizer_config.json", "{"), "the tokenizer in .* cannot be read"),
    "more tokens than embeddings": (another_token, "token embeddings, its tokenizer ids up to"),
    "a special token less": (other_tokens, r"splits <\|im_start\|>"),
    "no template": (remove(TEMPLATE), "no chat template"),
    "a template that is none": (write(TEMPLATE, "{% if"), "cannot write"),
    "a template that raises": (write(TEMPLATE, "{{ raise_exception('no') }}"), "cannot write"),
    "a template that tries to escape": (write(TEMPLATE, "{{ ''.__class__.__mro__ }}"), "cannot write"),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_folder_is_refused_in_one_sentence(folder: Path, what: str) -> None:
    load_model(folder)
    spoil, message = SPOILT[what]
    spoil(folder)
    with pytest.raises(UserError, match=message) as refused:
        load_model(folder)
    output = str(refused.value)
    assert str(folder) in output and "\n" not in output.replace("\\n", "") and len(output) < 1200


def test_a_folder_without_permission_is_refused(folder: Path) -> None:
    folder.parent.chmod(0o755)
    for name in (".", CONFIG, WEIGHTS, TOKENIZER):
        for path in folder.iterdir():
            path.chmod(0o644)
        mode = (folder / name).stat().st_mode
        (folder / name).chmod(0)
        if os.getuid() == 0:  # root may read everything
            os.seteuid(65534)
        try:
            with pytest.raises(UserError, match=r"permission|cannot be read"):
                load_model(folder)
        finally:
            os.seteuid(os.getuid())
            (folder / name).chmod(mode)


def test_a_loop_of_links_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(UserError, match=r"no model folder .*a: give"):
        check_folder(tmp_path / "a")


class Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


def test_pickles_and_code_beside_the_weights_are_named_and_never_read(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "read"
    for name in ("pytorch_model.bin", "model.pt", "x.pkl"):
        (folder / name).write_bytes(pickle.dumps(Trap(mark)))
    (folder / "modeling_qwen3.py").write_text(f"open({str(mark)!r}, 'w')")
    load_model(folder)
    config = (folder / CONFIG).read_text()
    named = {"AutoConfig": "modeling_qwen3.Config", "AutoModelForCausalLM": "modeling_qwen3.Model"}
    edit(CONFIG, auto_map=named)(folder)
    assert names_code(folder) and not hasattr(load_model(folder)[0].config, "auto_map")
    assert not mark.exists()
    (folder / CONFIG).write_text(config)
    (folder / WEIGHTS).unlink()
    with pytest.raises(UserError, match="may hold code and is not read"):
        load_model(folder)
    assert not mark.exists()
    assert unsafe_files(folder) == ["model.pt", "modeling_qwen3.py", "pytorch_model.bin", "x.pkl"]
    pickle.loads((folder / "x.pkl").read_bytes())
    assert mark.exists(), "the trap works"


def copied(model: PreTrainedModel, dtype: torch.dtype) -> PreTrainedModel:
    converted: Any = torch.nn.Module.to(model, dtype)
    same: PreTrainedModel = converted
    return same


@given(seed=st.integers(0, 2**16), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_tensors_are_those_of_the_loaded_model_in_one_file_or_in_shards(
    folder: Path, tokenizer: PreTrainedTokenizerFast, seed: int, dtype: torch.dtype
) -> None:
    model, _ = load_model(folder)
    with torch.no_grad():
        model.model.norm.weight += torch.rand(64, generator=torch.Generator().manual_seed(seed))
    save_model(folder, copied(model, dtype), tokenizer)
    state = load_model(folder)[0].state_dict()
    for step in (lambda: None, lambda: shard(folder)):
        step()
        weights = weight_files(folder)
        assert set(weights) == set(state) - {"lm_head.weight"}
        assert all(torch.equal(weights[name], state[name]) for name in weights)
        assert {tensor.dtype for tensor in weights.values()} == {torch.float32}
        assert weights.parameters == sum(state[name].numel() for name in weights) and len(weights) == len(
            weights.shapes
        )
