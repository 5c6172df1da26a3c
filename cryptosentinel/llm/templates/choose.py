"""The chat format of a tokenizer: the exact one of Qwen3 where its template writes that, else the template's own, and
how far the conversations that it builds are those that the template writes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from cryptosentinel.llm.chat_codec import CHAT_TEMPLATE, THINK_END, THINK_START, ChatCodec
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.pieces import PieceEncoder
from cryptosentinel.llm.templates.codec import TemplateCodec, TemplateDefinition
from cryptosentinel.llm.templates.layout import (
    PROBE_ARGUMENTS,
    RICH_ARGUMENTS,
    CannotRender,
    Renderer,
    find_layout,
    probe_tool,
)
from cryptosentinel.protocol.syntaxes import HERMES
from cryptosentinel.protocol.tool_calls import render_call, render_thought
from simulator.errors import UserError

_GENERATION = "generation_config.json"
_LOOKS_SPECIAL = re.compile(r"<\|[^|<>\s]{1,60}\|>|<｜[^｜<>\s]{1,60}｜>|<(?:start|end)_of_[a-z]+>")
_SYSTEM, _USER = "Be brief.", "Look at C1."
_THOUGHT = "The trend first.\nThen the risk."
_ANSWERS = ('{"price": 12.5, "note": "up \\"1 %\\""}', '{"price": 13}')
Calls = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class FormatReport:
    """Findings on a chat format.

    `differs`: where the history that a model sees is not what its template would write of it; the tokens that are
    trained are sampled and shown in any case. `adapted`: what the template cannot write, and how it is written instead.
    """

    verdict: Literal["exact", "approximate"]
    syntax: str
    differs: tuple[str, ...] = ()
    adapted: tuple[str, ...] = ()

    def sentence(self) -> str:
        """All of it in one sentence."""
        parts = [f"{self.verdict}: calls as {self.syntax}", *self.adapted]
        return "; ".join([*parts, *(f"unlike the template, {one}" for one in self.differs)])


def chat_format(tokenizer: PreTrainedTokenizerFast, folder: Path, *, think: bool = False) -> ChatFormat:
    """The codec for the model in `folder`. `think`: its answers may begin with a thought; without,
    those of Qwen3's hybrid models are begun with an empty one, which turns thinking off. Nano never learnt either.

    Raises `UserError`, with the way out, for a tokenizer without a template or with one that cannot be used.
    """
    return described_format(tokenizer, folder, think=think)[0]


def described_format(
    tokenizer: PreTrainedTokenizerFast, folder: Path, *, think: bool = False
) -> tuple[ChatFormat, FormatReport]:
    """The codec, and how far it writes what the template does. Raises `UserError` as `chat_format`."""
    try:
        definition = _definition(tokenizer, folder, think)
        if _writes_qwen3(tokenizer, definition):
            hybrid = "enable_thinking" in definition.template and definition.template != CHAT_TEMPLATE
            hybrid = hybrid and {THINK_START, THINK_END} <= tokenizer.get_added_vocab().keys()
            return ChatCodec(tokenizer, empty_think=hybrid and not think, think=think), FormatReport("exact", "hermes")
        codec = template_codec(tokenizer.backend_tokenizer, definition)
        return codec, _check(codec)
    except UserError as error:
        raise UserError(f"in {folder}, {error}") from error


def template_codec(tokenizer: Tokenizer, definition: TemplateDefinition) -> TemplateCodec:
    """The codec of a template, whatever it writes. Raises `UserError` for one that cannot be used."""
    written = sorted(set(_LOOKS_SPECIAL.findall(definition.template)))
    tokens = {text: tokenizer.encode(text, add_special_tokens=False).ids for text in written}
    encoder = PieceEncoder(tokenizer, [text for text in written if tokens[text] == [tokenizer.token_to_id(text)]])
    variables = {**definition.tokens, "enable_thinking": definition.think, "thinking": definition.think}
    layout = find_layout(Renderer(definition.template, variables), encoder)
    texts = "".join(piece for piece in layout.opening + layout.response + layout.next_user if isinstance(piece, str))
    split = next((text for text in written if text in texts), None)
    if split:
        raise UserError(
            f"the tokenizer splits {split}, which the chat template writes, into {len(tokens[split])} tokens: it is "
            "not the one that the model was trained with; give that one"
        )
    return TemplateCodec(encoder, layout, definition)


def _definition(tokenizer: PreTrainedTokenizerFast, folder: Path, think: bool) -> TemplateDefinition:
    template: Any = tokenizer.chat_template
    if isinstance(template, Mapping):  # several: for tools, for documents
        template = template.get("tool_use", template.get("default"))
    if not isinstance(template, str) or not template:
        raise UserError(
            "the tokenizer has no chat template, so the roles of a conversation cannot be marked: use the model's chat "
            "(instruct) version, or put its chat_template.jinja into the folder"
        )
    try:
        named = json.loads((folder / _GENERATION).read_text(encoding="utf-8")).get("eos_token_id")
    except (OSError, ValueError, AttributeError):
        named = None
    ends = [*(named if isinstance(named, list) else [named]), tokenizer.eos_token_id]
    tokens = {name: text for name, text in tokenizer.special_tokens_map.items() if isinstance(text, str)}
    return TemplateDefinition(template, tokens, tuple(sorted({one for one in ends if type(one) is int})), think)


def _writes_qwen3(tokenizer: PreTrainedTokenizerFast, definition: TemplateDefinition) -> bool:
    """Whether the tokenizer's own template writes a tool call's round trip as `ChatCodec` does."""
    try:
        codec = ChatCodec(tokenizer)
    except UserError:
        return False
    renderer, answer = Renderer(definition.template, definition.tokens), _ANSWERS[0]
    ours = codec.start(_SYSTEM, _USER) + codec.encode_assistant(render_call("look", PROBE_ARGUMENTS))
    messages = [*renderer.first(_SYSTEM, _USER), renderer.call(HERMES, "look", PROBE_ARGUMENTS)]
    try:
        text = renderer.render([*messages, renderer.result("look", answer)])
    except CannotRender:
        return False
    return ours + codec.tool_response(answer) == codec.tokenizer.encode(text, add_special_tokens=False).ids


def _check(codec: TemplateCodec) -> FormatReport:
    """Compare the codec's token ids with those of the template's renderings, tokenized whole."""
    layout = codec.layout
    facts = {
        "the system text begins the user's turn": not layout.renderer.system_role,
        "tools are listed in the system text": not layout.tools_shown,
        "a tool's answer is a turn of the user": not layout.renderer.calls,
    }
    differs = tuple(_differences(codec))
    adapted = tuple(words for words, holds in facts.items() if holds)
    return FormatReport("approximate" if differs else "exact", layout.syntax.name, differs, adapted)


def _differences(codec: TemplateCodec) -> Iterator[str]:
    thought = "" if codec.thoughts is None else _THOUGHT

    def written(calls: Calls, tools: list[dict[str, Any]] | None = None) -> bool:
        return _as_written(codec, calls, thought, tools)

    if not written([PROBE_ARGUMENTS]):
        yield "an answer in the history stays as it was sampled, with its beginning"
    elif not written([PROBE_ARGUMENTS] * 3):
        yield "each turn with a tool's answer is written as the first one"
    elif codec.layout.tools_shown and not written([PROBE_ARGUMENTS], [probe_tool("look")]):
        yield "the list of tools is written otherwise"
    elif not written([RICH_ARGUMENTS]):
        yield "lists, true and null in arguments are written in JSON"


def _as_written(codec: TemplateCodec, calls: Calls, thought: str, tools: list[dict[str, Any]] | None) -> bool:
    """Whether the template writes a conversation with these calls, each behind a `thought`, as the codec does, up to
    the last call's end."""
    renderer = codec.layout.renderer
    messages = renderer.first(_SYSTEM, _USER)
    ids = codec.start(_SYSTEM, _USER, tools)
    for number, arguments in enumerate(calls):
        answer = _ANSWERS[number % len(_ANSWERS)]
        call = renderer.call(codec.syntax, "look", arguments, thought)
        messages += [call, renderer.result("look", answer)]
        ids += codec.encode_assistant(render_thought(thought, render_call("look", dict(arguments))))
        ids += codec.tool_response(answer, "look") if number < len(calls) - 1 else []
    try:
        text = renderer.render(messages, tools)
    except CannotRender:
        return False
    theirs: list[int] = codec.tokenizer.encode(text, add_special_tokens=False).ids
    return theirs[: len(ids)] == ids
