"""A team's models for other programs: what they load answers as the team does."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path

import jinja2
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel
from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from backend.models.export.gguf_file import write_gguf
from backend.models.export.modelfile import modelfile, template
from backend.models.export.team import export_team
from backend.models.manifest import MANIFEST, read_manifest, sample_team
from backend.policies.adapters import load_versions
from backend.policies.build import role_policies
from backend.policies.role_policies import RolePolicies
from cryptosentinel.agents.registry import roles_of
from cryptosentinel.llm.chat_codec import ChatCodec
from cryptosentinel.llm.model_files import read_tokenizer
from simulator.errors import UserError

NANO = sample_team() / "nano"
NEEDS_GGUF = pytest.mark.skipif(
    importlib.util.find_spec("gguf") is None, reason="the package gguf is absent: `python scripts/install.py gguf`"
)
PROMPT = torch.tensor([[1272, 65, 300, 12, 44, 901, 7, 1273]])


@pytest.fixture(scope="module")
def policies() -> RolePolicies:
    """The shipped team as this program has it."""
    manifest = read_manifest(sample_team())
    weights = manifest.weights()
    assert weights is not None
    made, _ = role_policies(NANO, manifest.training, roles=roles_of(manifest.team.roles))
    load_versions(made, sample_team() / weights)
    return made


def logits(model: torch.nn.Module) -> torch.Tensor:
    """What a model says of the prompt."""
    with torch.no_grad():
        said: torch.Tensor = model.eval()(PROMPT).logits
    return said


def expected(policies: RolePolicies, role: str) -> torch.Tensor:
    """What the role's merged weights say of the prompt."""
    model = AutoModelForCausalLM.from_pretrained(NANO, dtype="float32")
    model.load_state_dict(policies.merged_state(role))
    return logits(model)


def test_peft_loads_each_role_and_answers_as_the_team(policies: RolePolicies, tmp_path: Path) -> None:
    written = list(export_team(Path("sample"), tmp_path, "peft"))
    assert [one.role for one in written] == list(policies.roles)
    for one in written:
        base = AutoModelForCausalLM.from_pretrained(NANO, dtype="float32")
        plain = logits(base)
        loaded = logits(PeftModel.from_pretrained(base, str(one.path)))
        assert torch.allclose(loaded, expected(policies, one.role), atol=1e-4)
        assert not torch.allclose(loaded, plain, atol=1e-2), "the adapter changes nothing"


def test_a_merged_model_is_a_folder_that_transformers_loads(policies: RolePolicies, tmp_path: Path) -> None:
    for one in export_team(Path("sample"), tmp_path, "merged"):
        loaded = AutoModelForCausalLM.from_pretrained(one.path)
        assert loaded.dtype == torch.float32 and torch.allclose(logits(loaded), expected(policies, one.role), atol=1e-5)
        text = "<tool_call>\n{}\n</tool_call><|im_end|>"
        assert AutoTokenizer.from_pretrained(one.path)(text) == AutoTokenizer.from_pretrained(NANO)(text)


@NEEDS_GGUF
def test_a_gguf_file_holds_the_roles_model(policies: RolePolicies, tmp_path: Path) -> None:
    from gguf import GGUFReader

    written = list(export_team(Path("sample"), tmp_path, "ollama"))
    assert {one.path.suffix for one in written} == {".gguf", ".Modelfile"}
    for role in policies.roles:
        # transformers takes no size of heads from a file of Qwen3's kind, so it is told the shape.
        shape = AutoConfig.from_pretrained(NANO)
        model = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file=f"{role}.gguf", config=shape, dtype="float32")
        assert torch.allclose(logits(model), expected(policies, role), atol=1e-4)
    fields = GGUFReader(tmp_path / "trader.gguf").fields
    assert fields["qwen3.attention.key_length"].contents() == 32
    assert fields["tokenizer.ggml.pre"].contents() == "superbpe"
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert tokens[1272] == "<|im_start|>" and fields["tokenizer.ggml.eos_token_id"].contents() == 1273
    assert "tokenizer.chat_template" in fields
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@NEEDS_GGUF
def test_llamas_queries_and_keys_are_turned_as_llama_cpp_turns_them(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=1280, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "llama")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(NANO / name, tmp_path / "llama" / name)
    write_gguf(tmp_path / "llama", tmp_path / "llama.gguf", "random")
    read = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="llama.gguf", dtype="float32")
    assert torch.allclose(logits(read), logits(model), atol=1e-4)


_NANO_TOKENS = Tokenizer.from_file(str(NANO / "tokenizer.json"))
_SUPERBPE = Tokenizer.from_file(str(NANO / "tokenizer.json"))
_SUPERBPE.pre_tokenizer = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(Regex(r"\p{N}+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
)


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=60) | st.from_regex(r'\{"[a-z_]+": -?[0-9]+\.[0-9]+, "reason": "[ -~]*"\}\n?', fullmatch=True))
def test_the_cut_that_llama_cpp_is_told_of_gives_nanos_tokens(text: str) -> None:
    """llama.cpp's `superbpe` cuts at runs of digits alone, and nano's merges hold no digit, sign or line break."""
    text = text.encode("utf-8", "replace").decode()
    assert _SUPERBPE.encode(text).ids == _NANO_TOKENS.encode(text).ids


@pytest.mark.parametrize("form", ["gguf", "ollama"])
def test_without_the_package_it_is_one_sentence(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "gguf" else there(name, *rest))
    with pytest.raises(UserError, match=r"the package gguf of llama.cpp is not installed"):
        list(export_team(Path("sample"), tmp_path / "out", form))  # type: ignore[arg-type]  # a word of the parameters
    assert not (tmp_path / "out").exists()


@NEEDS_GGUF
def test_a_tokenizer_that_llama_cpp_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "nano"
    shutil.copytree(NANO, folder)
    document = json.loads((folder / "tokenizer.json").read_text())
    document["pre_tokenizer"] = {"type": "Whitespace"}
    (folder / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match="would have other tokens: export it with --as merged"):
        write_gguf(folder, tmp_path / "one.gguf", "one")
    (folder / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    with pytest.raises(UserError, match="a model of kind mamba"):
        write_gguf(folder, tmp_path / "one.gguf", "one")


def test_a_team_that_is_its_base_has_nothing_to_export(tmp_path: Path) -> None:
    document = json.loads((sample_team() / MANIFEST).read_text())
    shutil.copytree(NANO, tmp_path / "nano")
    (tmp_path / MANIFEST).write_text(json.dumps({**document, "adapters": None}))
    with pytest.raises(UserError, match="no adapter to export"):
        list(export_team(tmp_path, tmp_path / "out", "merged"))


# What stands in the template's braces, in the words of Jinja; the two agree on what `-` trims.
_IN_JINJA = {
    "range .Messages": "% for m in messages %",
    'if eq .Role "system"': '% if m.role == "system" %',
    'else if eq .Role "user"': '% elif m.role == "user" %',
    'else if eq .Role "assistant"': '% elif m.role == "assistant" %',
    'else if eq .Role "tool"': '% elif m.role == "tool" %',
    ".Content": "{ m.content }",
    "range .ToolCalls": "% for c in m.calls or [] %",
    ".Function.Name": "{ c.name }",
    ".Function.Arguments": "{ c.arguments }",
}


def _rendered(go: str, messages: list[dict[str, object]]) -> str:
    open_blocks: list[str] = []

    def action(match: re.Match[str]) -> str:
        dash, words = match[1], match[2]
        if words == "end":
            text = f"% {open_blocks.pop()} %"
        else:
            text = _IN_JINJA[words]
            if words.startswith(("range", "if")):
                open_blocks.append("endfor" if words.startswith("range") else "endif")
        return "{" + text[0] + dash + text[1:] + "}"

    source = re.sub(r"\{\{(-?) ?(.*?) ?\}\}", action, go)
    return jinja2.Environment(keep_trailing_newline=True).from_string(source).render(messages=messages)


def test_the_modelfile_builds_the_conversation_that_the_team_was_trained_on() -> None:
    codec = ChatCodec(read_tokenizer(NANO))
    token_ids = codec.start("You are Trader.", "C1: short 0.5")
    token_ids += codec.encode_assistant('<tool_call>\n{"name": "get_book", "arguments": {"depth": 3}}\n</tool_call>')
    token_ids += codec.tool_response('{"spread": 0.1}')
    messages: list[dict[str, object]] = [
        {"role": "system", "content": "You are Trader."},
        {"role": "user", "content": "C1: short 0.5"},
        {"role": "assistant", "content": "", "calls": [{"name": "get_book", "arguments": '{"depth": 3}'}]},
        {"role": "tool", "content": '{"spread": 0.1}'},
    ]
    tokens = Tokenizer.from_file(str(NANO / "tokenizer.json"))
    assert _rendered(template(False), messages) == tokens.decode(list(token_ids), skip_special_tokens=False)
    text = modelfile("trader.gguf", codec, {"temperature": 1.0, "num_ctx": 4096, "lists_tools": True})
    assert text.startswith("FROM ./trader.gguf\n") and "range $.Tools" in text
    assert 'PARAMETER stop "<|im_end|>"' in text and "PARAMETER num_ctx 4096" in text
