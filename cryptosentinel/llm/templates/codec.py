"""The chat format of a tokenizer's own template, as token ids.

A conversation is put together of the pieces in `layout.Layout`. What is appended after an assistant's turn is always
the same but for the data in it, so the ids that a model sampled stay as they were sampled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from cryptosentinel.llm.chat_format import ChatFormat, ChatMessages, ThoughtFormat
from cryptosentinel.llm.templates.layout import SYSTEM, TEXT, TOOL, USER, Layout, opening_with
from cryptosentinel.llm.templates.pieces import Piece, PieceEncoder, Special
from cryptosentinel.llm.templates.words import WordMarkers
from cryptosentinel.protocol.calls.syntax import CallSyntax, Said, guessed, json_text
from cryptosentinel.protocol.tool_calls import (
    Arguments,
    MalformedCall,
    ToolCall,
    read_call,
    render_call,
    render_thought,
    split_thought,
)
from simulator.errors import UserError

# As Qwen's templates begin it, so that whoever takes the list of tools out of a system turn finds it.
_TOOLS_BEGIN = "\n\n# Tools\n\nYou may call one or more functions"
_MOST_OPENINGS = 64  # a team has one a role


@dataclass(frozen=True)
class TemplateDefinition:
    """What a codec is made of, beside the tokenizer.

    Attributes:
        template: the Jinja template.
        tokens: the texts that it knows by name, as `bos_token`.
        ends: ids that end a turn beside the template's own, as the model's generation_config.json names them.
        think: whether answers may begin with a thought.
    """

    template: str
    tokens: Mapping[str, str]
    ends: tuple[int, ...] = ()
    think: bool = False


class TemplateCodec(ChatFormat):
    """Builds and reads conversations of one template."""

    def __init__(self, encoder: PieceEncoder, layout: Layout, definition: TemplateDefinition) -> None:
        think = definition.think
        self.definition = definition
        self.layout = layout
        self.empty_think = not think and layout.thought is not None
        self._encoder = encoder
        self.vocab_size = encoder.tokenizer.get_vocab_size(with_added_tokens=True)
        self.special_ids = encoder.special_ids
        self.end_of_turn = self.special_ids[layout.end]
        # What closes a thought (GPT-OSS ends every message with it) does not end the turn.
        spoken = {layout.text_end} - {layout.thought[1] if layout.thought else None}
        self._ends = frozenset({self.end_of_turn, *(self.special_ids[one] for one in spoken), *definition.ends})
        # Without thoughts the beginning goes on to where a call is written.
        self._begin: list[Piece] = [] if think else encoder.split(layout.before_call)
        self._response = [*layout.response, *self._begin]
        self._next_user = [*layout.next_user, *self._begin]
        self.thoughts = _thoughts(layout, encoder) if think else None
        # What the beginning of the next answer ends with, and that of one in the past does not have.
        dropped = self.thoughts is not None and not self.thoughts.kept
        self._begun = encoder.split(layout.begun) if dropped else []
        # Where the user gives a tool's answer, the pieces of his turns have all words.
        answered = [layout.response] if layout.calls_shown else []
        self.words = WordMarkers([layout.opening, layout.next_user, *answered])
        self._openings: dict[str, list[Piece]] = {}
        self._told: dict[str, None] = {}  # lists of tools in system texts, in the order in which they came
        self._opening_of(None)

    @property
    def tokenizer(self) -> Tokenizer:
        return self._encoder.tokenizer

    @property
    def ends(self) -> frozenset[int]:
        return self._ends

    @property
    def syntax(self) -> CallSyntax:
        """How this model writes calls."""
        return self.layout.syntax

    def start(self, system: str, user: str, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
        if tools and not self.layout.tools_shown:
            told = _tools_text(tools, self.syntax)
            self._told[told] = None
            system, tools = system + told, None
        return self._encoder.encode(
            self._opening_of(tools), {SYSTEM: self._value(SYSTEM, system), USER: self._value(USER, user)}
        )

    def tool_response(self, text: str, tool: str = "") -> list[int]:
        values = {TEXT: self._value(TEXT, text), TOOL: re.sub(r"[^A-Za-z0-9_.-]", "_", tool) or "unknown"}
        return self._encoder.encode(self._response, values, after=self.layout.end)

    def user_turn(self, text: str) -> list[int]:
        return self._encoder.encode(self._next_user, {TEXT: self._value(USER, text)}, after=self.layout.end)

    def past_prompt(self, prompt: Sequence[int]) -> list[int]:
        begun = self._encoder.encode(self._begun, {}, after=self.layout.end)
        return list(prompt[: -len(begun)] if begun and list(prompt[-len(begun) :]) == begun else prompt)

    def past_answer(self, answer: Sequence[int]) -> list[int]:
        lead = self._encoder.encode(self._encoder.split(self.layout.past_lead), {}, after=self.layout.end)
        first = next((at for at, one in enumerate(answer) if self.decode([one]).strip()), len(answer))
        return [*lead, *answer[first:]]

    def encode_data(self, text: str) -> list[int]:
        return self._encoder.data(self.words.broken(text))

    def _value(self, slot: str, text: str) -> str:
        """`text` as it stands in the slot: as the template writes it, and without words that open or close a turn."""
        return self.layout.rules[slot].apply(self.words.broken(text))

    def encode_assistant(self, text: str) -> list[int]:
        layout = self.layout
        thought, said = split_thought(text)
        call = read_call(said)
        lead = "" if self.empty_think or layout.thought is None else layout.before_call
        if thought and layout.thought is not None:
            before, behind = layout.thought_frame
            lead = ("" if layout.thought_open else before) + thought + behind
        if not isinstance(call, MalformedCall) and isinstance(call[1], dict):
            said = self.syntax.write(call[0], call[1]) + layout.call_tail
        own = {*self.syntax.markers, *_markers(layout, self._encoder)}
        ids = self._encoder.encode(self._encoder.split(lead + said, own), {}, after=self._last_special())
        return [*ids, self.end_of_turn]

    def messages(self, ids: Sequence[int]) -> ChatMessages:
        text = self._encoder.marked(ids)
        turns, place = self._first_turns(text)
        ends = {self._encoder.sign(name) for name, index in self.special_ids.items() if index in self._ends}
        follow = {"tool": self._pattern(self._response), "user": self._pattern(self._next_user)}
        while place < len(text):
            end = next((at for at in range(place, len(text)) if text[at] in ends), len(text))
            turns.append({"role": "assistant", "content": self._canonical(text[place:end])})
            place = end + 1
            for role, pattern in follow.items():
                if found := pattern.match(text, place):
                    turns.append({"role": role, "content": self._unescaped(found[TEXT], role)})
                    place = found.end()
                    break
            else:
                place = place + len(text) if not text[place:].strip() else place
        return turns

    def parse(self, text: str, tools: dict[str, type[Arguments]]) -> ToolCall | MalformedCall:
        """The call that a completion ends with. A thought and other text may stand before it."""
        return self.syntax.parse(self._without_thought(text, self.layout.thought)[1], tools)

    def _opening_of(self, tools: Sequence[Mapping[str, Any]] | None) -> list[Piece]:
        key = json.dumps(tools, sort_keys=True) if tools else ""
        if key not in self._openings:
            pieces = opening_with(self.layout, self._encoder, tools) if tools else self.layout.opening
            if len(self._openings) > _MOST_OPENINGS:
                self._openings.clear()
            self._openings[key] = [*pieces, *self._begin]
        return self._openings[key]

    def _last_special(self) -> str | None:
        """The special token behind which an answer begins, if any."""
        return next((piece.text for piece in reversed(self._openings[""]) if isinstance(piece, Special)), None)

    def _pattern(self, pieces: Sequence[Piece]) -> re.Pattern[str]:
        """What stands before an answer; what only begins one that is still to come may be missing."""
        if not self._begun:
            return self._encoder.matcher(pieces)
        past, begun = (self._encoder.matcher(one).pattern for one in (_without_end(pieces, self._begun), self._begun))
        return re.compile(f"{past}(?:{begun})?", re.DOTALL)

    def _first_turns(self, text: str) -> tuple[ChatMessages, int]:
        """System and user, and where the first answer begins."""
        # The longest first: one without tools takes those of another for what the system says.
        for opening in sorted(self._openings.values(), key=_length, reverse=True):
            if found := self._pattern(opening).match(text):
                system, user = found[SYSTEM], found[USER]
                if not self.layout.tools_shown:
                    together = f"{system}\n\n{user}"
                    told = next((one for one in self._told if one in together), None)
                    if told is not None:
                        system, _, user = together.partition(told)
                        user = user.removeprefix("\n\n")
                return [{"role": "system", "content": system}, {"role": "user", "content": user}], found.end()
        return [], 0

    def _canonical(self, text: str) -> str:
        """An answer of a `marked` text with its call in the project's own form."""
        tags = self.layout.thought and (
            self._marked_tag(self.layout.thought[0]),
            self._marked_tag(self.layout.thought[1]),
        )
        thought, rest = map(self._encoder.unmarked, self._without_thought(text, tags))
        said = self.syntax.read(rest)
        if not isinstance(said, Said) or not isinstance(said.arguments, dict):
            return render_thought(thought, rest)
        call = render_call(said.name, {key: guessed(value) for key, value in said.arguments.items()})
        before = said.before.strip()
        return render_thought(thought, f"{before}\n{call}" if before else call)

    def _marked_tag(self, tag: str) -> str:
        """What opens or closes a thought, as it is in a `marked` text."""
        pieces = self._encoder.split(tag)
        return "".join(self._encoder.sign(one.text) if isinstance(one, Special) else str(one) for one in pieces)

    def _without_thought(self, text: str, tags: tuple[str, str] | None) -> tuple[str, str]:
        """The thought that an answer begins with, between the `tags`, and the rest of it."""
        if tags is None:
            return "", text
        inside = text.lstrip().startswith(tags[0])
        if not inside and not (self.layout.thought_open and not self.empty_think):
            return "", text
        thought, found, rest = text.lstrip().removeprefix(tags[0]).partition(tags[1])
        if not found:
            return "", text
        rest = rest.lstrip()
        for start in ("<|start|>", *([self._encoder.sign("<|start|>")] if "<|start|>" in self.special_ids else [])):
            rest = rest.removeprefix(f"{start}assistant")
        return thought.strip(), rest

    def _unescaped(self, text: str, role: str) -> str:
        text = self._encoder.unmarked(text)
        if role != "tool" or not self.layout.rules[TEXT].escaped:
            return text
        try:
            return str(json.loads(f'"{text}"'))
        except ValueError:
            return text


def _length(pieces: Sequence[Piece]) -> int:
    return sum(len(piece) for piece in pieces if isinstance(piece, str))


def _markers(layout: Layout, encoder: PieceEncoder) -> set[str]:
    """The special tokens that a thought is framed with."""
    texts = [*(layout.thought or ()), *layout.thought_frame, layout.before_call]
    return {piece.text for text in texts for piece in encoder.split(text) if isinstance(piece, Special)}


def _without_end(pieces: Sequence[Piece], end: Sequence[Piece]) -> list[Piece]:
    """`pieces` without the `end` that they have; as they are where they have it not."""
    kept, behind = list(pieces[: -len(end)]), list(pieces[-len(end) :])
    if behind == list(end):
        return kept
    first, own = behind[0], end[0]
    if behind[1:] == list(end[1:]) and isinstance(first, str) and isinstance(own, str) and first.endswith(own):
        return [*kept, first.removesuffix(own)]
    return list(pieces)


def _thoughts(layout: Layout, encoder: PieceEncoder) -> ThoughtFormat:
    """How answers begin with a thought. Raises `UserError` for a template or tokenizer that has no thoughts."""
    way_out = "set team.thinking_tokens = 0, or use a model that thinks"
    if layout.thought is None:
        raise UserError(f"the chat template knows no thoughts: {way_out}")
    opened, closed = layout.thought
    if closed not in encoder.special_ids:
        raise UserError(f"the tokenizer has no token {closed}, so that the end of a thought cannot be told: {way_out}")
    texts = [piece if isinstance(piece, str) else getattr(piece, "text", "") for piece in layout.opening]
    if "".join(texts).rstrip().endswith(closed):
        raise UserError(f"the chat template begins every answer with an empty thought: {way_out}")
    frame = layout.thought_frame[1]
    if frame.count(closed) != 1:
        frame = f"\n{closed}\n\n"
    return ThoughtFormat(
        opening=tuple(encoder.encode(encoder.split(opened), {}, after=layout.end)),
        closing=encoder.special_ids[closed],
        begun=layout.thought_open,
        cut_off=tuple(encoder.encode(encoder.split(frame), {}, after=layout.end)),
        lead=frame.partition(closed)[2],
        kept=layout.thoughts_kept,
    )


def _tools_text(tools: Sequence[Mapping[str, Any]], syntax: CallSyntax) -> str:
    """What a system turn says of the tools where the template says nothing."""
    listed = "\n".join(json_text(dict(tool)) for tool in tools)
    return (
        f"{_TOOLS_BEGIN} to assist with the user query. These are their signatures:\n{listed}\n\n"
        "To call one, end your answer with its name and arguments in this form and nothing after it:\n"
        + syntax.write("NAME", {"ARGUMENT": "VALUE"})
    )
