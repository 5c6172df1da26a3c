"""What a template's conversations are made of, found by asking it to write some: the layout that `TemplateCodec` uses.

Everything is looked at once, when a model is loaded. A conversation is then put together of the pieces, so that what a
model sampled stays as it was sampled. `check.py` says how that differs from what the template writes of a whole one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cryptosentinel.llm.templates.pieces import Piece, PieceEncoder, Slot, Special
from cryptosentinel.llm.templates.rendering import CannotRender, Marks, Renderer, TurnMessage
from cryptosentinel.protocol.calls.registry import FALLBACK, SYNTAXES
from cryptosentinel.protocol.calls.syntax import CallSyntax, json_text
from simulator.errors import UserError

# How models open and close a thought. The one whose opening stands in the template is the model's.
THOUGHTS = (
    ("<think>", "</think>"),
    ("<|channel>thought", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("[THINK]", "[/THINK]"),
)
SYSTEM, USER, TEXT, TOOL = "system", "user", "text", "tool"
_THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")  # where templates look for a thought
PROBE_ARGUMENTS: dict[str, Any] = {"symbol": "AAAUSDT", "size": -0.25}
RICH_ARGUMENTS: dict[str, Any] = {"symbol": "C1", "legs": [{"size": 1, "note": "x"}], "sure": True, "stop": None}
_CALL_ID = "q1w2e3r4t"  # Mistral takes ids of exactly nine letters and digits, the others any
_LOOKS_SPECIAL = re.compile(r"<\|[^|<>\s]{1,60}\|>|<｜[^｜<>\s]{1,60}｜>|<(?:start|end)_of_[a-z]+>")


@dataclass(frozen=True)
class SlotRule:
    """What a template does with a text: whether it strips it, and whether it writes it as the inside of a JSON
    string."""

    stripped: bool = False
    escaped: bool = False

    def apply(self, text: str) -> str:
        """`text` as the template writes it."""
        text = text.strip() if self.stripped else text
        return json_text(text)[1:-1] if self.escaped else text


@dataclass(frozen=True)
class Layout:
    """The pieces of a template's conversations.

    Attributes:
        opening: system turn, user turn and the beginning of an answer, without tools; slots `system` and `user`.
        before_call: text that the answer's beginning ends with, so that what follows is the call.
        call_tail: text between a call and the end of its turn.
        end: the special token that ends a turn with a call; `text_end` that of a turn without one.
        response: what follows `end` when a tool answers; slots `text` and `tool`.
        next_user: what follows a turn's end when the user speaks again; slot `text`.
        rules: by slot.
        system_role: whether there is a system turn; else its text begins the user's.
        tools_shown: whether the template writes the list of tools; else the system text does.
        calls_shown: whether it writes tool calls and answers; else they are JSON, and the answers are the user's.
        thought: how a thought opens and closes; `thought_open`: an answer begins inside one.
        thoughts_kept: whether thoughts stay in the conversation while tools are called.
        thought_frame: text before and after a thought, what opens and closes it included, up to the call.
        begun: text that an answer's beginning ends with where one in the past has `past_lead`.
        as_text: whether the template takes a call's arguments as JSON; `content`: what it takes beside them.
    """

    renderer: Renderer
    syntax: CallSyntax
    opening: tuple[Piece, ...]
    before_call: str
    call_tail: str
    end: str
    text_end: str
    response: tuple[Piece, ...]
    next_user: tuple[Piece, ...]
    rules: Mapping[str, SlotRule]
    system_role: bool
    tools_shown: bool
    calls_shown: bool
    thought: tuple[str, str] | None
    thought_open: bool
    thoughts_kept: bool
    thought_frame: tuple[str, str]
    begun: str
    past_lead: str
    as_text: bool
    content: str | None

    def first_messages(self, system: str, user: str) -> list[TurnMessage]:
        """The messages that a conversation begins with."""
        if self.system_role:
            return [{"role": "system", "content": system}, {"role": "user", "content": user}]
        return [{"role": "user", "content": f"{system}\n\n{user}"}]

    def call_message(self, name: str, arguments: Mapping[str, Any], thought: str = "") -> TurnMessage:
        """An assistant's message that calls a tool, behind a `thought`."""
        call = _Calls(self.calls_shown, self.as_text, self.content).message(self.syntax, name, arguments)
        return call | dict.fromkeys(_THOUGHT_KEYS, thought) if thought else call

    def tool_message(self, name: str, text: str) -> TurnMessage:
        """A tool's answer."""
        return _tool_message(self.calls_shown, name, text)


@dataclass(frozen=True)
class _Calls:
    """How a template takes a tool call: in `tool_calls`, or (not `shown`) as text; its arguments as an object or
    (`as_text`) as JSON."""

    shown: bool
    as_text: bool = False
    content: str | None = ""

    def message(self, syntax: CallSyntax, name: str, arguments: Mapping[str, Any]) -> TurnMessage:
        if not self.shown:
            return {"role": "assistant", "content": syntax.write(name, arguments)}
        given = json_text(dict(arguments)) if self.as_text else dict(arguments)
        call = {"id": _CALL_ID, "type": "function", "function": {"name": name, "arguments": given}}
        return {"role": "assistant", "content": self.content, "tool_calls": [call]}


def written_tokens(template: str) -> list[str]:
    """What looks like a special token in a template's text."""
    return sorted(set(_LOOKS_SPECIAL.findall(template)))


def find_layout(renderer: Renderer, encoder: PieceEncoder) -> Layout:
    """The layout of a template's conversations.

    Raises `UserError` where no conversation can be written that a model could be asked and trained with.
    """
    marks = Marks()
    system, user, name = marks.new(SYSTEM), marks.new(USER), f"look_{marks.new(TOOL)}"
    marks.names[name] = TOOL
    del marks.names[name.removeprefix("look_")]
    renderer = _with_style(renderer, user)
    system_role = _shows(renderer, [system], [_system(system), _user(user)])
    base = [_system(system), _user(user)] if system_role else [_user(f"{system}\n\n{user}")]
    try:
        first = renderer.shows([user], base)
    except CannotRender as error:
        raise UserError(
            f"the chat template cannot write a system and a user turn ({error}): use a chat model"
        ) from None
    if system not in first:
        raise UserError("the chat template leaves out what the system says: use a chat model")
    tools = [probe_tool(name)]
    tools_shown = _shows(renderer, [], base, tools=tools) and name in renderer.render(base, tools=tools)
    syntax, calls, told = _syntax(renderer, base, name, tools if tools_shown else None)
    text = marks.new(TEXT)
    tools_shown = tools_shown and calls.shown  # who does not know calls does not say how to make one
    answered, shown = _answered(renderer, base, calls, syntax, name, text, told)
    if not shown and calls.shown:  # it writes calls, but no answers to them
        calls, syntax, told, tools_shown = _Calls(False), FALLBACK, None, False
    call = calls.message(syntax, name, PROBE_ARGUMENTS)
    written = syntax.write(name, PROBE_ARGUMENTS)
    place = answered.find(written)
    header, behind = answered[:place], answered[place + len(written) :]
    found = encoder.pattern.search(behind, 0, behind.find(text))
    if found is None:
        raise UserError(
            "the chat template ends an answer by no special token of the tokenizer, so a model could not be taught "
            "where an answer ends: use a chat model with its own tokenizer"
        )
    end, tail, after = found.group(), behind[: found.start()], behind[found.end() :]
    if told is not None:
        first = renderer.render(base, tools=told)
    thought = next((one for one in THOUGHTS if one[0] in renderer.template), None)
    lead, begun, past_lead = _lead(first, header, thought)
    frame = _thought_frame(renderer, base, calls, syntax, name, told, thought, first)
    plain_first = renderer.render(base)
    next_user, text_end = _next_user(renderer, encoder, base, marks, end)
    rules = {
        SYSTEM: _rule(renderer, lambda one: [_system(one), _user("x")] if system_role else [_user(f"{one}\n\nx")]),
        USER: _rule(renderer, lambda one: [_system("x"), _user(one)] if system_role else [_user(f"x\n\n{one}")]),
        TEXT: _rule(renderer, lambda one: [*base, call, _tool_message(calls.shown, name, one)]),
    }
    return Layout(
        renderer=renderer,
        syntax=syntax,
        opening=tuple(marks.pieces(plain_first, encoder)),
        before_call=lead,
        call_tail=tail,
        end=end,
        text_end=text_end,
        response=tuple(marks.pieces(after, encoder)),
        next_user=next_user,
        rules=rules,
        system_role=system_role,
        tools_shown=tools_shown,
        calls_shown=calls.shown,
        thought=thought,
        thought_open=thought is not None and plain_first.rstrip().endswith(thought[0]),
        thoughts_kept=frame is not None,
        thought_frame=frame or _usual_frame(thought),
        begun=begun,
        past_lead=past_lead,
        as_text=calls.as_text,
        content=calls.content,
    )


def probe_tool(name: str) -> dict[str, Any]:
    """A tool of the probes."""
    kinds = {"symbol": {"type": "string", "description": "a coin"}, "size": {"type": "number", "description": "a size"}}
    parameters = {"type": "object", "properties": kinds, "required": list(kinds)}
    return {"type": "function", "function": {"name": name, "description": "Look.", "parameters": parameters}}


def opening_with(layout: Layout, encoder: PieceEncoder, tools: Sequence[Mapping[str, Any]]) -> tuple[Piece, ...]:
    """The opening in which the template lists `tools`. What the tools say is structure, apart from the special tokens
    in it: they stay text."""
    marks = Marks()
    words = {SYSTEM: marks.new(SYSTEM), USER: marks.new(USER)}
    hidden: dict[str, str] = {}  # from word to text

    def hide(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {hide(key): hide(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [hide(one) for one in value]
        if isinstance(value, str) and encoder.pattern.search(value):
            word = marks.new("said")
            hidden[word] = json_text(value)[1:-1]
            return word
        return value

    shown = [hide(tool) for tool in tools]
    for word in hidden:
        del marks.names[word]
    text = layout.renderer.render(layout.first_messages(words[SYSTEM], words[USER]), tools=shown)
    pieces: list[Piece] = []
    for piece in marks.pieces(text, encoder):
        if isinstance(piece, str):
            for word, said in hidden.items():
                piece = piece.replace(word, said)
        pieces.append(piece)
    return tuple(pieces)


def _system(text: str) -> TurnMessage:
    return {"role": "system", "content": text}


def _user(text: str) -> TurnMessage:
    return {"role": "user", "content": text}


def _tool_message(shown: bool, name: str, text: str) -> TurnMessage:
    if shown:
        return {"role": "tool", "name": name, "tool_call_id": _CALL_ID, "content": text}
    return _user('{"tool_response": ' + text + "}")


def _shows(renderer: Renderer, words: Sequence[str], messages: Sequence[TurnMessage], **more: Any) -> bool:
    try:
        renderer.shows(words, messages, **more)
    except CannotRender:
        return False
    return True


def _with_style(renderer: Renderer, user: str) -> Renderer:
    """The renderer with the style of contents that the template shows. Raises `UserError` where it shows none."""
    for style in ("text", "parts"):
        tried = Renderer(renderer.template, renderer.variables, style)
        if _shows(tried, [user], [_user(user)]):
            return tried
    try:
        renderer.render([_user(user)])
        reason = "it leaves out what the user says"
    except CannotRender as error:
        reason = str(error)
    raise UserError(f"the chat template cannot be used ({reason}): use a chat model with a template of its own")


def _syntax(
    renderer: Renderer, base: list[TurnMessage], name: str, tools: list[dict[str, Any]] | None
) -> tuple[CallSyntax, _Calls, list[dict[str, Any]] | None]:
    """The syntax in which the template writes a call, how it takes one, and the tools that it wants to be told."""
    for calls in (_Calls(True, as_text, content) for as_text in (False, True) for content in ("", None)):
        for told in (tools, None):
            try:
                text = renderer.render([*base, calls.message(FALLBACK, name, PROBE_ARGUMENTS)], tools=told, begin=False)
            except CannotRender:
                continue
            possible = [one for one in SYNTAXES if text.count(one.write(name, PROBE_ARGUMENTS)) == 1]
            if possible:
                rich = [*base, calls.message(FALLBACK, name, RICH_ARGUMENTS)]
                whole = (one for one in possible if _shows(renderer, [one.write(name, RICH_ARGUMENTS)], rich))
                return next(whole, possible[0]), calls, told
    return FALLBACK, _Calls(False), None


def _answered(
    renderer: Renderer,
    base: list[TurnMessage],
    calls: _Calls,
    syntax: CallSyntax,
    name: str,
    text: str,
    tools: list[dict[str, Any]] | None,
) -> tuple[str, bool]:
    """A conversation with a call and a tool's answer, and whether the template has a turn for that. Raises `UserError`
    where not even the user can give the answer."""
    if calls.shown:
        messages = [*base, calls.message(syntax, name, PROBE_ARGUMENTS), _tool_message(True, name, text)]
        written = syntax.write(name, PROBE_ARGUMENTS)
        if _shows(renderer, [written, text], messages, tools=tools) and _rule_is_known(renderer, messages):
            return renderer.render(messages, tools=tools), True
    written = FALLBACK.write(name, PROBE_ARGUMENTS)
    messages = [*base, _Calls(False).message(FALLBACK, name, PROBE_ARGUMENTS), _tool_message(False, name, text)]
    try:
        return renderer.shows([written, text], messages), False
    except CannotRender as error:
        raise UserError(
            f"the chat template cannot write the answer of a tool, nor a second turn of the user ({error}): use a chat "
            "model"
        ) from None


def _lead(first: str, header: str, thought: tuple[str, str] | None) -> tuple[str, str, str]:
    """What stands between an answer's beginning and its call, what the beginning ends with that one in the past does
    not have, and what one in the past has instead."""
    shared = next(
        (at for at, (one, other) in enumerate(zip(first, header, strict=False)) if one != other),
        min(len(first), len(header)),
    )
    lead = past_lead = header[shared:]
    if thought is not None and first.rstrip().endswith(thought[0]) and thought[1] not in lead:
        lead = f"\n{thought[1]}\n\n{lead.lstrip()}"
    return lead, first[shared:], past_lead


def _next_user(
    renderer: Renderer, encoder: PieceEncoder, base: list[TurnMessage], marks: Marks, end: str
) -> tuple[tuple[Piece, ...], str]:
    """What follows a turn's end when the user speaks again, and the special token that ends a turn without a call."""
    spoken = Marks()
    said, text = spoken.new("said"), spoken.new(TEXT)
    messages = [*base, {"role": "assistant", "content": said}, _user(text)]
    try:
        behind = renderer.shows([said, text], messages).partition(said)[2]
    except CannotRender as error:
        raise UserError(
            f"the chat template cannot write a second turn of the user ({error}): use a chat model"
        ) from None
    found = encoder.pattern.search(behind, 0, behind.find(text))
    if found is None:
        return tuple(spoken.pieces(behind, encoder)), end
    after = behind[found.end() :]
    pieces = spoken.pieces(after, encoder)
    # The turn before was ended as one with a call: what ends others is then still to be written.
    return tuple(pieces if found.group() == end else [Special(found.group()), *pieces]), found.group()


def _rule(renderer: Renderer, messages: Any) -> SlotRule:
    """What the template does with a text in these messages."""
    marks = Marks()
    one, other = marks.new("one"), marks.new("other")
    try:
        text = renderer.render(messages(f'{one}"\n{other}'))
        escaped = text.partition(one)[2].partition(other)[0] == '\\"\\n'
        plain = renderer.render(messages(one)).partition(one)
        spaced = renderer.render(messages(f"  {one}  ")).partition(one)
    except CannotRender:
        return SlotRule()
    return SlotRule(plain == spaced, escaped)


def _rule_is_known(renderer: Renderer, messages: list[TurnMessage]) -> bool:
    """Whether the last message's text is written as it is, or as the inside of a JSON string."""
    marks = Marks()
    one, other = marks.new("one"), marks.new("other")
    try:
        text = renderer.render([*messages[:-1], {**messages[-1], "content": f'{one}"\n{other}'}])
    except CannotRender:
        return False
    return text.partition(one)[2].partition(other)[0] in ('"\n', '\\"\\n')


def _thought_frame(
    renderer: Renderer,
    base: list[TurnMessage],
    calls: _Calls,
    syntax: CallSyntax,
    name: str,
    told: Any,
    thought: tuple[str, str] | None,
    first: str,
) -> tuple[str, str] | None:
    """What the template writes before and after a thought whose call a tool has answered; None where it drops it.

    Before it is what an answer begins with; after it, what leads to the call.
    """
    if thought is None:
        return None
    word = Marks().new("thought")
    call = calls.message(syntax, name, PROBE_ARGUMENTS) | dict.fromkeys(_THOUGHT_KEYS, word)
    try:
        text = renderer.render([*base, call, _tool_message(calls.shown, name, "x")], tools=told)
    except CannotRender:
        return None
    before, found, behind = text.partition(word)
    written = syntax.write(name, PROBE_ARGUMENTS)
    if not found or word in behind or written not in behind:
        return None
    after = behind.partition(written)[0]
    begun = first if before.startswith(first) else before[: before.rfind(thought[0])]
    return before[len(begun) :], after


def _usual_frame(thought: tuple[str, str] | None) -> tuple[str, str]:
    """How a thought is mostly written, for templates that write none in the past."""
    return ("", "") if thought is None else (f"{thought[0]}\n", f"\n{thought[1]}\n\n")


def slots_of(pieces: Sequence[Piece]) -> list[str]:
    """The names of the slots in `pieces`, in their order."""
    return [piece.name for piece in pieces if isinstance(piece, Slot)]
