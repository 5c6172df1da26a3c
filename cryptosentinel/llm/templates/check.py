"""How far the conversations that we build are those that a template writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cryptosentinel.llm.templates.codec import TemplateCodec
from cryptosentinel.llm.templates.layout import PROBE_ARGUMENTS, RICH_ARGUMENTS, probe_tool
from cryptosentinel.llm.templates.rendering import CannotRender
from cryptosentinel.protocol.tool_calls import render_call, render_thought

_SYSTEM, _USER = "Be brief.", "Look at C1."
_THOUGHT = "The trend first.\nThen the risk."
_ANSWERS = ('{"price": 12.5, "note": "up \\"1 %\\""}', '{"price": 13}')

_Verdict = Literal["exact", "approximate"]


@dataclass(frozen=True)
class FormatReport:
    """What was found of a chat format.

    `differs` says where the history that a model sees is not what its template would write of it; the tokens that are
    trained are sampled and shown in any case. `adapted` says what the template cannot say and is therefore said in
    other words.
    """

    verdict: _Verdict
    syntax: str
    differs: tuple[str, ...] = ()
    adapted: tuple[str, ...] = ()

    def sentence(self) -> str:
        """All of it in one sentence."""
        parts = [f"{self.verdict}: calls as {self.syntax}", *self.adapted]
        if self.differs:
            parts.append("unlike the template, " + "; ".join(self.differs))
        return "; ".join(parts)


def check_format(codec: TemplateCodec) -> FormatReport:
    """Compare the codec's token ids with those of the template's renderings, tokenised whole."""
    layout = codec.layout
    differs = tuple(dict.fromkeys(_differences(codec)))
    adapted = []
    if not layout.system_role:
        adapted.append("the system text begins the user's turn")
    if not layout.tools_shown:
        adapted.append("tools are listed in the system text")
    if not layout.calls_shown:
        adapted.append("a tool's answer is a turn of the user")
    if codec.thoughts is not None and not codec.thoughts.kept:
        adapted.append("thoughts are dropped from earlier turns")
    if codec.words.words:
        listed = ", ".join(f"'{word}'" for word in codec.words.words)
        adapted.append(f"turns are marked by the words {listed}, which get a space inside where they stand in data")
    return FormatReport("approximate" if differs else "exact", layout.syntax.name, differs, tuple(adapted))


def _differences(codec: TemplateCodec) -> Iterator[str]:
    thought = _THOUGHT if codec.thoughts is not None else ""

    def as_written(calls: Sequence[Mapping[str, Any]], tools: list[dict[str, Any]] | None = None) -> bool:
        return _as_written(codec, calls, thought, tools)

    if not as_written([PROBE_ARGUMENTS]):
        yield "an answer in the history keeps the beginning that it was sampled with"
    elif not as_written([PROBE_ARGUMENTS] * 2):
        yield "the turn with a tool's answer is written in its own way"
    elif not as_written([PROBE_ARGUMENTS] * 3):
        yield "later calls are written as the first one"
    elif codec.layout.tools_shown and not as_written([PROBE_ARGUMENTS], [probe_tool("look")]):
        yield "the list of tools is written otherwise"
    elif not as_written([RICH_ARGUMENTS]):
        yield "lists, true and null in arguments are written in JSON"


def _as_written(
    codec: TemplateCodec,
    calls: Sequence[Mapping[str, Any]],
    thought: str,
    tools: list[dict[str, Any]] | None,
) -> bool:
    """Whether the template writes a conversation with these calls, each behind a `thought`, as the codec does, up to
    the last call's end."""
    layout = codec.layout
    messages = layout.first_messages(_SYSTEM, _USER)
    ids = codec.start(_SYSTEM, _USER, tools)
    for number, arguments in enumerate(calls):
        answer = _ANSWERS[number % len(_ANSWERS)]
        messages += [layout.call_message("look", arguments, thought), layout.tool_message("look", answer)]
        said = codec.encode_assistant(render_thought(thought, render_call("look", dict(arguments))))
        if thought and codec.thoughts is not None and not codec.thoughts.kept:
            ids = codec.past_prompt(ids) + codec.past_answer(said[said.index(codec.thoughts.closing) + 1 :])
        else:
            ids += said
        if number < len(calls) - 1:
            ids += codec.tool_response(answer, "look")
    try:
        text = layout.renderer.render(messages, tools)
    except CannotRender:
        return False
    theirs: list[int] = codec.tokenizer.encode(text, add_special_tokens=False).ids
    return theirs[: len(ids)] == ids
