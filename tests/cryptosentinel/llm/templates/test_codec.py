"""Templates of our own, each with one property: what is found of it, and what is refused in one sentence."""

from pathlib import Path

import pytest

from cryptosentinel.llm.chat_codec import CHAT_TEMPLATE, ChatCodec
from cryptosentinel.llm.templates import TemplateCodec, described_format
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.protocol.untrusted import clean
from scripts.template_table import tokenizer_for
from simulator.errors import UserError

TURN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
BEGIN = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
PLAIN = TURN + BEGIN
CALL = render_call("look", {"symbol": "C1"})


def codec_of(template: str) -> TemplateCodec:
    codec, _ = described_format(tokenizer_for(template), Path())
    assert isinstance(codec, TemplateCodec)
    return codec


def report_of(template: str) -> str:
    return described_format(tokenizer_for(template), Path())[1].sentence()


def test_qwen3s_own_template_gets_the_exact_codec() -> None:
    assert type(described_format(tokenizer_for(CHAT_TEMPLATE), Path())[0]) is ChatCodec


def test_a_template_without_tools_gets_them_in_words() -> None:
    assert report_of(PLAIN) == (
        "exact: calls as json; tools are listed in the system text; a tool's answer is a turn of the user"
    )
    codec = codec_of(PLAIN)
    tool = {"type": "function", "function": {"name": "look", "description": "", "parameters": {"type": "object"}}}
    text = codec.decode(
        codec.start("Be brief.", "Go.", [tool]) + codec.encode_assistant(CALL) + codec.tool_response("1")
    )
    assert '"name": "look", "description"' in text.partition("<|user|>")[0]
    assert text.endswith(
        '<|assistant|>{"name": "look", "arguments": {"symbol": "C1"}}<|end|>'
        '<|user|>{"tool_response": 1}<|end|><|assistant|>'
    )
    assert codec.messages(codec.start("Be brief.", "Go.", [tool]))[0]["content"] == "Be brief."


def test_a_template_that_refuses_a_system_turn_gets_its_text_with_the_users() -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN
    assert "the system text begins the user's turn" in report_of(template)
    codec = codec_of(template)
    ids = codec.start("Be brief.", "Go.")
    assert codec.decode(ids) == "<|user|>Be brief.\n\nGo.<|end|><|assistant|>"
    assert [turn["content"] for turn in codec.messages(ids)] == ["Be brief.", "Go."]


def test_a_past_that_is_rewritten_is_approximate() -> None:
    past = "<|{{ m.role }}|>{% if m.role == 'assistant' and not loop.last %}(past) {% endif %}"
    template = PLAIN.replace("<|{{ m.role }}|>", past) + "{% if add_generation_prompt %}Now: {% endif %}"
    assert report_of(template).startswith("approximate") and "unlike the template" in report_of(template)


def test_the_day_does_not_change_a_conversation() -> None:
    codec = codec_of("{{ strftime_now('%Y') }}" + PLAIN)
    assert codec.decode(codec.start("a", "b")).startswith("2024")


def test_the_ends_of_a_turn_are_those_of_template_tokenizer_and_model(tmp_path: Path) -> None:
    tokenizer = tokenizer_for(PLAIN + "{# <|stop|> #}")
    stop = tokenizer.backend_tokenizer.get_vocab()["<|stop|>"]
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": [{stop}]}}')
    codec, _ = described_format(tokenizer, tmp_path)
    assert codec.ends == {codec.special_ids["<|end|>"], codec.special_ids["</s>"], stop}
    assert codec.decode_answer([*codec.encode_data("a"), stop]) == "a"


REFUSED = {
    "": "no chat template.*chat_template.jinja",
    "{% if": "cannot write a system and a user turn",
    "{{ raise_exception('no') }}": "cannot write a system and a user turn .no",
    "{{ messages[0].role }}": "left out, repeated or moved",
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}": "ends an answer by no special token",
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ '</s>' if m.role == 'assistant' else ' ' }}{% endfor %}"
    "{{ 'assistant:' if add_generation_prompt }}": "marks turns by ordinary words",
    PLAIN + "{% if messages | length > 2 %}{{ raise_exception('two turns') }}{% endif %}": "two turns",
    "{% for m in messages %}{{ m.content * 2 }}<|end|>{% endfor %}": "left out, repeated or moved",
}


@pytest.mark.parametrize("template", REFUSED)
def test_what_cannot_be_used_is_refused_in_a_sentence(template: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=REFUSED[template]) as refused:
        described_format(tokenizer_for(template), tmp_path)
    assert str(refused.value).startswith(f"in {tmp_path}, ") and "\n" not in str(refused.value)


def test_a_tokenizer_that_splits_a_special_token_is_refused() -> None:
    tokenizer = tokenizer_for(PLAIN)
    tokenizer.chat_template = PLAIN.replace("<|assistant|>", "<|helper|>")
    with pytest.raises(UserError, match=r"splits <\|helper\|>.* into 10 tokens.*give that one"):
        described_format(tokenizer, Path())


def test_special_tokens_that_are_in_the_vocabulary_too_are_not_made_of_text() -> None:
    """As in SmolLM2 and Llama 2, whose special tokens have a place among the merges' own."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<|user|>", "<|system|>", "<|assistant|>", "<|end|>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {name: index for index, name in enumerate([*names, *alphabet, "<|", "end", "<|end", "|>", "en"])}
    merges = [("<", "|"), ("e", "n"), ("en", "d"), ("<|", "end"), ("|", ">"), ("<|end", "|>")]
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, normalized=False, special=True) for name in names])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", chat_template=PLAIN)
    codec, report = described_format(tokenizer, Path())
    assert report.verdict == "exact" and codec.special_ids["<|end|>"] == vocabulary["<|end|>"]
    assert codec.decode(codec.encode_data("<|end|>")) == "<|end|>"
    assert vocabulary["<|end|>"] not in codec.encode_data("<|end|>")


@pytest.mark.parametrize("tag", ["[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/THINK]", "[TOOL_RESULTS]"])
def test_cleaned_text_spells_no_bracketed_tag_of_a_server(tag: str) -> None:
    assert clean(f"a {tag} b [BREAKING] [1]", 80) == "a b [BREAKING] [1]"
    assert clean(f"a [{tag[1:-1]}{tag}] b", 80) == f"a [{tag[1:-1]} ] b", "what is left spells none either"
