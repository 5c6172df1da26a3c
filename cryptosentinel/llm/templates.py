"""The chat format of a tokenizer: the exact one of Qwen3 where its template writes that, else the template's own, as
token ids; and how far the conversations that it builds are those that the template writes.

A conversation is put together of the pieces in `template_layout.Layout`. What is appended after an assistant's turn is
always the same but for the data in it, so the ids that a model sampled stay as they were sampled, thoughts included.
"""

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
from cryptosentinel.llm.chat_format import ChatFormat, ChatMessages, ThoughtFormat
from cryptosentinel.llm.pieces import Piece, PieceEncoder, Special
from cryptosentinel.llm.template_layout import (
    PROBE_ARGUMENTS,
    RICH_ARGUMENTS,
    SYSTEM,
    TEXT,
    TOOL,
    USER,
    CannotRender,
    Layout,
    Renderer,
    find_layout,
    opening_with,
    probe_tool,
)
from cryptosentinel.protocol.syntaxes import HERMES, CallSyntax, Said, guessed, json_text
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

_GENERATION = "generation_config.json"
_LOOKS_SPECIAL = re.compile(r"<\|[^|<>\s]{1,60}\|>|<｜[^｜<>\s]{1,60}｜>|<(?:start|end)_of_[a-z]+>")
_SYSTEM, _USER = "Be brief.", "Look at C1."
_THOUGHT = "The trend first.\nThen the risk."
_ANSWERS = ('{"price": 12.5, "note": "up \\"1 %\\""}', '{"price": 13}')
Calls = Sequence[Mapping[str, Any]]
# As Qwen's templates begin it, so that whatever takes the list of tools out of a system turn finds it.
_TOOLS_BEGIN = "\n\n# Tools\n\nYou may call one or more functions"


@dataclass(frozen=True)
class TemplateDefinition:
    """What a codec is made of, beside the tokenizer.

    Attributes:
        template: the Jinja template.
        tokens: the texts that it knows by name, as `bos_token`.
        ends: ids that end a turn beside the template's own, as the model's generation_config.json lists them.
        think: whether answers may begin with a thought.
    """

    template: str
    tokens: Mapping[str, str]
    ends: tuple[int, ...] = ()
    think: bool = False


class TemplateCodec(ChatFormat):
    """Builds and reads conversations of one template. Text from outside is stripped of white space around it."""

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
        # Without thoughts the beginning continues up to where a call is written.
        self._begin: list[Piece] = [] if think else encoder.split(layout.before_call)
        self._response = [*layout.response, *self._begin]
        self._next_user = [*layout.next_user, *self._begin]
        self.thoughts = _thoughts(layout, encoder) if think else None
        self._openings: dict[str, list[Piece]] = {"": [*layout.opening, *self._begin]}  # by the list of tools
        self._listed: set[str] = set()  # lists of tools in system texts

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
        key = ""
        if tools and not self.layout.tools_shown:
            listed = _tools_text(tools, self.syntax)
            self._listed.add(listed)
            system += listed
        elif tools:
            key = json.dumps(tools, sort_keys=True)
            if key not in self._openings:
                self._openings[key] = [*opening_with(self.layout, self._encoder, tools), *self._begin]
        return self._encoder.encode(self._openings[key], {SYSTEM: system.strip(), USER: user.strip()})

    def tool_response(self, text: str, tool: str = "") -> list[int]:
        text = json_text(text.strip())[1:-1] if self.layout.escaped else text.strip()
        values = {TEXT: text, TOOL: re.sub(r"[^A-Za-z0-9_.-]", "_", tool) or "unknown"}
        return self._encoder.encode(self._response, values, after=self.layout.end)

    def user_turn(self, text: str) -> list[int]:
        return self._encoder.encode(self._next_user, {TEXT: text.strip()}, after=self.layout.end)

    def encode_data(self, text: str) -> list[int]:
        return self._encoder.data(text)

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
        framed = [*(layout.thought or ()), *layout.thought_frame, layout.before_call]
        own = {piece.text for one in framed for piece in self._encoder.split(one) if isinstance(piece, Special)}
        specials = [piece.text for piece in self._openings[""] if isinstance(piece, Special)]
        pieces = self._encoder.split(lead + said, own | {*self.syntax.markers})
        return [*self._encoder.encode(pieces, after=specials[-1] if specials else None), self.end_of_turn]

    def messages(self, ids: Sequence[int]) -> ChatMessages:
        text = self._encoder.marked(ids)
        turns, place = self._first_turns(text)
        ends = {self._encoder.sign(name) for name, index in self.special_ids.items() if index in self._ends}
        follow = {"tool": self._encoder.matcher(self._response), "user": self._encoder.matcher(self._next_user)}
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

    def _first_turns(self, text: str) -> tuple[ChatMessages, int]:
        """System and user, and where the first answer begins."""
        # The longest first: one without tools takes those of another for a part of the system text.
        for opening in sorted(self._openings.values(), key=_length, reverse=True):
            if found := self._encoder.matcher(opening).match(text):
                system, user = (self._encoder.unmarked(found[name]) for name in (SYSTEM, USER))
                if listed := next((one for one in self._listed if one in f"{system}\n\n{user}"), None):
                    system, _, user = f"{system}\n\n{user}".partition(listed)
                    user = user.removeprefix("\n\n")
                return [{"role": "system", "content": system}, {"role": "user", "content": user}], found.end()
        return [], 0

    def _canonical(self, text: str) -> str:
        """An answer of a `marked` text with its call in the project's own form."""
        tags = self.layout.thought and (self._marked(self.layout.thought[0]), self._marked(self.layout.thought[1]))
        thought, rest = map(self._encoder.unmarked, self._without_thought(text, tags))
        said = self.syntax.read(rest)
        if not isinstance(said, Said) or not isinstance(said.arguments, dict):
            return render_thought(thought, rest)
        call = render_call(said.name, {key: guessed(value) for key, value in said.arguments.items()})
        before = said.before.strip()
        return render_thought(thought, f"{before}\n{call}" if before else call)

    def _marked(self, tag: str) -> str:
        """A tag as it is in a `marked` text."""
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
        if role != "tool" or not self.layout.escaped:
            return text
        try:
            return str(json.loads(f'"{text}"'))
        except ValueError:
            return text


def _length(pieces: Sequence[Piece]) -> int:
    return sum(len(piece) for piece in pieces if isinstance(piece, str))


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
        opening=tuple(encoder.encode(encoder.split(opened), after=layout.end)),
        closing=encoder.special_ids[closed],
        begun=layout.thought_open,
        cut_off=tuple(encoder.encode(encoder.split(frame), after=layout.end)),
        lead=frame.partition(closed)[2],
    )


def _tools_text(tools: Sequence[Mapping[str, Any]], syntax: CallSyntax) -> str:
    """The list of tools in a system text, where the template shows none."""
    listed = "\n".join(json_text(dict(tool)) for tool in tools)
    return (
        f"{_TOOLS_BEGIN} to assist with the user query. These are their signatures:\n{listed}\n\n"
        "To call one, end your answer with its name and arguments in this form and nothing after it:\n"
        + syntax.write("NAME", {"ARGUMENT": "VALUE"})
    )


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
