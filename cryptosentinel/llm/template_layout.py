"""What a template's conversations are made of, found by asking it to write some, when a model is loaded.

Random words stand in the place of data: what the template writes around them is the structure of a conversation, which
`templates.TemplateCodec` puts together, so that what a model sampled stays as it was sampled.
"""

from __future__ import annotations

import datetime
import itertools
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from cryptosentinel.llm.pieces import Piece, PieceEncoder, Slot, Special
from cryptosentinel.protocol.syntaxes import FALLBACK, SYNTAXES, CallSyntax, json_text
from simulator.errors import UserError

TurnMessage = dict[str, Any]
ToolSchemas = Sequence[Mapping[str, Any]]

# How models open and close a thought. The one whose opening is in the template is the model's.
_THOUGHTS = (
    ("<think>", "</think>"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("[THINK]", "[/THINK]"),
)
_THOUGHT_KEYS = ("reasoning_content", "reasoning", "thinking")  # where templates look for a thought
SYSTEM, USER, TEXT, TOOL = "system", "user", "text", "tool"
_DATA = (Slot(SYSTEM), Slot(USER), Slot(TEXT))
PROBE_ARGUMENTS: dict[str, Any] = {"symbol": "AAAUSDT", "size": -0.25}
RICH_ARGUMENTS: dict[str, Any] = {"symbol": "C1", "legs": [{"size": 1, "note": "x"}], "sure": True, "stop": None}
_CALL_ID = "q1w2e3r4t"  # Mistral takes ids of exactly nine letters and digits, the others any
# Some templates write the date of the day. A fixed one makes the same conversation of the same words on any day.
_TODAY = datetime.datetime(2024, 7, 26)
_FAILURES = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


class CannotRender(Exception):
    """The template refuses these messages, or does not show what is in them."""


class Marks:
    """Random words, each for a slot."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}  # from word to slot

    def new(self, slot: str, before: str = "") -> str:
        """A word that stands for the slot."""
        word = f"{before}q{secrets.token_hex(10)}z"
        self.names[word] = slot
        return word

    def pieces(self, text: str, encoder: PieceEncoder) -> tuple[Piece, ...]:
        """A rendered text with slots and special tokens."""
        pieces: list[Piece] = []
        for part in re.split(f"({'|'.join(self.names) or '(?!)'})", text):
            pieces += [Slot(self.names[part])] if part in self.names else encoder.split(part)
        return tuple(pieces)


@dataclass(frozen=True)
class Renderer:
    """A template with its variables, and how it takes a tool call: in `tool_calls`, or (not `calls`) as text; arguments
    as an object or (`as_text`) as JSON, beside `content`."""

    template: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    system_role: bool = True
    calls: bool = True
    as_text: bool = False
    content: str | None = ""

    def render(self, messages: Sequence[TurnMessage], tools: ToolSchemas | None = None, *, begin: bool = True) -> str:
        """What the template writes; with `begin` the next answer's beginning too. Raises `CannotRender`."""
        try:
            rendered: Any = render_jinja_template(
                [list(messages)],
                tools=None if tools is None else [dict(tool) for tool in tools],
                chat_template=self.template,
                add_generation_prompt=begin,
                strftime_now=_TODAY.strftime,
                **self.variables,
            )
        except _FAILURES as error:
            raise CannotRender(" ".join(str(error).split())[:200] or type(error).__name__) from error
        return str(rendered[0][0])

    def shows(
        self,
        words: Sequence[str],
        messages: Sequence[TurnMessage],
        tools: ToolSchemas | None = None,
        *,
        begin: bool = True,
    ) -> str:
        """The rendering, if each of `words` is in it once and in this order. Raises `CannotRender`."""
        text = self.render(messages, tools)
        places = [text.find(word) for word in words]
        if -1 in places or any(text.count(word) > 1 for word in words) or places != sorted(places):
            raise CannotRender("a message's text is left out, repeated or moved")
        return text

    def can_show(self, words: Sequence[str], messages: Sequence[TurnMessage], tools: ToolSchemas | None = None) -> bool:
        """Whether `shows` does not raise."""
        try:
            self.shows(words, messages, tools)
        except CannotRender:
            return False
        return True

    def first(self, system: str, user: str) -> list[TurnMessage]:
        """The messages that a conversation begins with."""
        if self.system_role:
            return [{"role": "system", "content": system}, _user(user)]
        return [_user(f"{system}\n\n{user}")]

    def call(self, syntax: CallSyntax, name: str, arguments: Mapping[str, Any], thought: str = "") -> TurnMessage:
        """An assistant's message that calls a tool, behind a `thought`."""
        message: TurnMessage = {"role": "assistant", "content": syntax.write(name, arguments)}
        if self.calls:
            given = json_text(dict(arguments)) if self.as_text else dict(arguments)
            made = {"id": _CALL_ID, "type": "function", "function": {"name": name, "arguments": given}}
            message |= {"content": self.content, "tool_calls": [made]}
        return message | dict.fromkeys(_THOUGHT_KEYS, thought) if thought else message

    def result(self, name: str, text: str) -> TurnMessage:
        """A tool's answer."""
        if self.calls:
            return {"role": "tool", "name": name, "tool_call_id": _CALL_ID, "content": text}
        return _user('{"tool_response": ' + text + "}")


@dataclass(frozen=True)
class Layout:
    """The pieces of a template's conversations.

    Attributes:
        opening: system turn, user turn and the beginning of an answer, without tools; slots `system` and `user`.
        before_call: text that the answer's beginning ends with, so that what follows is the call.
        call_tail: text between a call and the end of its turn.
        end: the special token that ends a turn with a call; `text_end` that of a turn without one.
        response: what follows `end` when a tool answers; slots `text` and `tool`.
        next_user: what follows a turn's end when the user writes again; slot `text`.
        escaped: whether a tool's answer is written as the inside of a JSON string.
        tools_shown: whether the template writes the list of tools; else the system text does.
        thought: how a thought opens and closes; `thought_open`: an answer begins inside one.
        thought_frame: text before and after a thought, what opens and closes it included, up to the call.
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
    escaped: bool
    tools_shown: bool
    thought: tuple[str, str] | None
    thought_open: bool
    thought_frame: tuple[str, str]


def find_layout(renderer: Renderer, encoder: PieceEncoder) -> Layout:
    """The layout of a template's conversations.

    Raises `UserError` where no conversation can be written that a model could be asked and trained with.
    """
    marks = Marks()
    system, user = marks.new(SYSTEM), marks.new(USER)
    if not renderer.can_show([system], renderer.first(system, user)):
        renderer = _with(renderer, system_role=False)
    base = renderer.first(system, user)
    plain = _needed(lambda: renderer.shows([user], base), "a system and a user turn")
    if system not in plain:
        raise UserError("the chat template leaves out what the system says: use a chat model")
    name, text = marks.new(TOOL, "look_"), marks.new(TEXT)
    renderer, syntax, reported = _calls(renderer, base, name)
    escaped = renderer.calls and _writes(renderer, base, syntax, name, reported) == '\\"\\n'
    call = renderer.call(syntax, name, PROBE_ARGUMENTS)
    written = syntax.write(name, PROBE_ARGUMENTS)
    answered = _needed(
        lambda: renderer.shows([written, text], [*base, call, renderer.result(name, text)], reported),
        "the answer of a tool, nor a second turn of the user",
    )
    header, _, behind = answered.partition(written)
    found = encoder.pattern.search(behind, 0, behind.find(text))
    if found is None:
        raise UserError(
            "the chat template ends an answer by no special token of the tokenizer, so a model could not be taught "
            "where an answer ends: use a chat model with its own tokenizer"
        )
    first = plain if reported is None else renderer.render(base, reported)
    thought = next((one for one in _THOUGHTS if one[0] in renderer.template), None)
    next_user, text_end = _next_user(renderer, encoder, base, found.group())
    layout = Layout(
        renderer=renderer,
        syntax=syntax,
        opening=marks.pieces(plain, encoder),
        before_call=_lead(first, header, thought),
        call_tail=behind[: found.start()],
        end=found.group(),
        text_end=text_end,
        response=marks.pieces(behind[found.end() :], encoder),
        next_user=next_user,
        escaped=escaped,
        tools_shown=reported is not None,
        thought=thought,
        thought_open=thought is not None and plain.rstrip().endswith(thought[0]),
        thought_frame=_thought_frame(renderer, base, syntax, name, reported, thought, first),
    )
    _refuse_words(layout)
    return layout


def probe_tool(name: str) -> dict[str, Any]:
    """A tool of the probes."""
    kinds = {"symbol": {"type": "string", "description": "a coin"}, "size": {"type": "number", "description": "a size"}}
    parameters = {"type": "object", "properties": kinds, "required": list(kinds)}
    return {"type": "function", "function": {"name": name, "description": "Look.", "parameters": parameters}}


def opening_with(layout: Layout, encoder: PieceEncoder, tools: ToolSchemas) -> tuple[Piece, ...]:
    """The opening in which the template lists `tools`. The text of the tools is structure, apart from the special
    tokens in it: they stay text."""
    marks = Marks()
    system, user = marks.new(SYSTEM), marks.new(USER)
    hidden: dict[str, str] = {}  # from word to text

    def hide(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {hide(key): hide(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [hide(one) for one in value]
        if isinstance(value, str) and encoder.pattern.search(value):
            word = f"q{secrets.token_hex(10)}z"
            hidden[word] = json_text(value)[1:-1]
            return word
        return value

    text = layout.renderer.render(layout.renderer.first(system, user), [hide(tool) for tool in tools])
    pieces: list[Piece] = []
    for piece in marks.pieces(text, encoder):
        for word, said in hidden.items() if isinstance(piece, str) else ():
            piece = piece.replace(word, said) if isinstance(piece, str) else piece
        pieces.append(piece)
    return tuple(pieces)


def _user(text: str) -> TurnMessage:
    return {"role": "user", "content": text}


def _with(renderer: Renderer, **changes: Any) -> Renderer:
    return Renderer(**{**vars(renderer), **changes})


def _needed(render: Callable[[], str], what: str) -> str:
    try:
        return render()
    except CannotRender as error:
        raise UserError(f"the chat template cannot write {what} ({error}): use a chat model") from None


def _calls(
    renderer: Renderer, base: list[TurnMessage], name: str
) -> tuple[Renderer, CallSyntax, list[dict[str, Any]] | None]:
    """How the template takes a call and writes it, and the tools that it lists; where it cannot, calls are JSON in the
    text, and the system text lists the tools."""
    tools = [probe_tool(name)]
    try:
        shown = name in renderer.render(base, tools)
    except CannotRender:
        shown = False
    for as_text, content, reported in itertools.product((False, True), ("", None), (tools, None) if shown else (None,)):
        tried = _with(renderer, as_text=as_text, content=content)
        try:
            text = tried.render([*base, tried.call(FALLBACK, name, PROBE_ARGUMENTS)], reported, begin=False)
        except CannotRender:
            continue
        possible = [one for one in SYNTAXES if text.count(one.write(name, PROBE_ARGUMENTS)) == 1]
        rich = [*base, tried.call(FALLBACK, name, RICH_ARGUMENTS)]
        whole = [one for one in possible if tried.can_show([one.write(name, RICH_ARGUMENTS)], rich)]
        if possible and _writes(tried, base, possible[0], name, reported) in ('"\n', '\\"\\n'):
            return tried, (whole or possible)[0], reported
    return _with(renderer, calls=False), FALLBACK, None


def _writes(renderer: Renderer, base: list[TurnMessage], syntax: CallSyntax, name: str, reported: Any) -> str:
    """What the template makes of a quotation mark and a line break in a tool's answer; "" where it shows none."""
    one, other = Marks().new("one"), Marks().new("other")
    call = renderer.call(syntax, name, PROBE_ARGUMENTS)
    try:
        text = renderer.shows([one, other], [*base, call, renderer.result(name, f'{one}"\n{other}')], reported)
    except CannotRender:
        return ""
    return text.partition(one)[2].partition(other)[0]


def _lead(first: str, header: str, thought: tuple[str, str] | None) -> str:
    """What is between an answer's beginning and its call."""
    shared = next((at for at, pair in enumerate(zip(first, header, strict=False)) if pair[0] != pair[1]), None)
    lead = header[min(len(first), len(header)) if shared is None else shared :]
    if thought is not None and first.rstrip().endswith(thought[0]) and thought[1] not in lead:
        return f"\n{thought[1]}\n\n{lead.lstrip()}"
    return lead


def _next_user(
    renderer: Renderer, encoder: PieceEncoder, base: list[TurnMessage], end: str
) -> tuple[tuple[Piece, ...], str]:
    """What follows a turn's end when the user writes again, and the special token that ends a turn without a call."""
    spoken = Marks()
    said, text = spoken.new("said"), spoken.new(TEXT)
    messages = [*base, {"role": "assistant", "content": said}, _user(text)]
    behind = _needed(lambda: renderer.shows([said, text], messages), "a second turn of the user").partition(said)[2]
    found = encoder.pattern.search(behind, 0, behind.find(text))
    if found is None:
        return spoken.pieces(behind, encoder), end
    pieces = spoken.pieces(behind[found.end() :], encoder)
    # The turn before was ended as one with a call: what ends others is then still to be written.
    return pieces if found.group() == end else (Special(found.group()), *pieces), found.group()


def _thought_frame(
    renderer: Renderer, base: list[TurnMessage], syntax: CallSyntax, name: str, reported: Any,
    thought: tuple[str, str] | None, first: str,
) -> tuple[str, str]:  # fmt: skip
    """What the template writes before and after a thought whose call a tool has answered; as it is mostly written,
    where the template drops it. Before it is what an answer begins with; after it, what leads to the call."""
    if thought is None:
        return "", ""
    word = Marks().new("thought")
    call = renderer.call(syntax, name, PROBE_ARGUMENTS, word)
    try:
        text = renderer.render([*base, call, renderer.result(name, "x")], reported)
    except CannotRender:
        text = ""
    before, found, behind = text.partition(word)
    after, called, _ = behind.partition(syntax.write(name, PROBE_ARGUMENTS))
    if not found or word in behind or not called:
        return f"{thought[0]}\n", f"\n{thought[1]}\n\n"
    begun = first if before.startswith(first) else before[: before.rfind(thought[0])]
    return before[len(begun) :], after


def _refuse_words(layout: Layout) -> None:
    """Raise `UserError` where ordinary words end a text and open an answer, as in Vicuna: data could spell them."""
    for pieces in (layout.opening, layout.next_user, layout.response):
        for place, piece in enumerate(pieces):
            rest = list(itertools.takewhile(lambda one: not isinstance(one, Slot), pieces[place + 1 :]))
            texts = [one for one in rest if isinstance(one, str)]
            if piece in _DATA and len(texts) == len(rest) and any(map(str.isalnum, "".join(texts))):
                raise UserError(
                    "the chat template marks turns by ordinary words, which a text from outside could contain: use a "
                    "model whose turns are marked by special tokens"
                )
