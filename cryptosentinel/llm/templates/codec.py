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

from cryptosentinel.llm.chat_format import ChatFormat, ChatMessages
from cryptosentinel.llm.templates.layout import SYSTEM, TEXT, TOOL, USER, Layout, opening_with
from cryptosentinel.llm.templates.pieces import Piece, PieceEncoder, Special
from cryptosentinel.protocol.calls.syntax import CallSyntax, Said, guessed, json_text
from cryptosentinel.protocol.tool_calls import Arguments, MalformedCall, ToolCall, read_call, render_call

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
        values = {SYSTEM: self.layout.rules[SYSTEM].apply(system), USER: self.layout.rules[USER].apply(user)}
        return self._encoder.encode(self._opening_of(tools), values)

    def tool_response(self, text: str, tool: str = "") -> list[int]:
        values = {TEXT: self.layout.rules[TEXT].apply(text), TOOL: re.sub(r"[^A-Za-z0-9_.-]", "_", tool) or "unknown"}
        return self._encoder.encode(self._response, values, after=self.layout.end)

    def user_turn(self, text: str) -> list[int]:
        return self._encoder.encode(self._next_user, {TEXT: self.layout.rules[USER].apply(text)}, after=self.layout.end)

    def encode_data(self, text: str) -> list[int]:
        return self._encoder.data(text)

    def encode_assistant(self, text: str) -> list[int]:
        thought, said = _parts(text)
        call = read_call(said)
        begun = self.empty_think or self.layout.thought is None
        lead = "" if begun else self.layout.before_call
        if thought and self.layout.thought is not None:
            opened, closed = self.layout.thought
            lead = f"\n{thought}\n{closed}\n\n" if self.layout.thought_open else f"{opened}\n{thought}\n{closed}\n\n"
        if not isinstance(call, MalformedCall) and isinstance(call[1], dict):
            said = self.syntax.write(call[0], call[1]) + self.layout.call_tail
        own = {*self.syntax.markers, *(self.layout.thought or ())}
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
        return self.syntax.parse(self._without_thought(text)[1], tools)

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
        return self._encoder.matcher(pieces)

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
        text = self._encoder.unmarked(text)
        thought, rest = self._without_thought(text)
        said = self.syntax.read(rest)
        if not isinstance(said, Said) or not isinstance(said.arguments, dict):
            return text
        call = render_call(said.name, {key: guessed(value) for key, value in said.arguments.items()})
        before = said.before.strip()
        kept = [f"<think>\n{thought}\n</think>\n\n"] if thought else []
        return "".join([*kept, *([f"{before}\n"] if before else []), call])

    def _without_thought(self, text: str) -> tuple[str, str]:
        """The thought that an answer begins with, and the rest of it."""
        if self.layout.thought is None:
            return "", text
        opened, closed = self.layout.thought
        inside = text.lstrip().startswith(opened)
        if not inside and not (self.layout.thought_open and not self.empty_think):
            return "", text
        thought, found, rest = text.lstrip().removeprefix(opened).partition(closed)
        if not found:
            return "", text
        return thought.strip(), rest.lstrip().removeprefix("<|start|>assistant")

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


def _parts(text: str) -> tuple[str, str]:
    """The thought of an answer in the project's own form, and the rest."""
    found = re.match(r"\s*<think>(.*?)</think>\s*", text, re.DOTALL)
    return (found[1].strip(), text[found.end() :]) if found else ("", text)


def _tools_text(tools: Sequence[Mapping[str, Any]], syntax: CallSyntax) -> str:
    """What a system turn says of the tools where the template says nothing."""
    listed = "\n".join(json_text(dict(tool)) for tool in tools)
    return (
        f"{_TOOLS_BEGIN} to assist with the user query. These are their signatures:\n{listed}\n\n"
        "To call one, end your answer with its name and arguments in this form and nothing after it:\n"
        + syntax.write("NAME", {"ARGUMENT": "VALUE"})
    )
