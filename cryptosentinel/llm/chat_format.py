"""What every chat format offers: conversations in token ids, and what a model said as a checked call.

`ChatCodec` is the exact format of nano and Qwen3; `templates.TemplateCodec` writes what the Jinja template of any other
tokenizer writes. Engines and conversations know only the class here. Thoughts stay in a conversation as sampled.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tokenizers import Tokenizer

from cryptosentinel.protocol.syntaxes import CallSyntax
from cryptosentinel.protocol.tool_calls import Arguments, MalformedCall, ToolCall, parse

ChatMessages = list[dict[str, str]]  # role and content of each message


class FastTokenizer(Protocol):
    """A Hugging Face fast tokenizer, seen only as the holder of its `tokenizers.Tokenizer`."""

    @property
    def backend_tokenizer(self) -> Tokenizer:
        """The tokenizer that does the work."""
        ...


@dataclass(frozen=True)
class ThoughtFormat:
    """How the answers of a model that thinks begin.

    Attributes:
        opening: the ids that open a thought, the model's own first ones.
        closing: the id that closes it. No data can hold it, so nothing but the model and its engine closes a thought.
        begun: whether the prompt has opened it already.
        cut_off: what ends a thought whose budget is spent, `closing` in it, up to where the answer begins.
        lead: text between `closing` and a call.
    """

    opening: tuple[int, ...]
    closing: int
    begun: bool
    cut_off: tuple[int, ...]
    lead: str


class ChatFormat(ABC):
    """Builds and reads conversations in token ids. It appends and never rewrites: sampled ids stay as they are.

    Attributes:
        vocab_size: ids of the tokenizer, special tokens included.
        special_ids: ids of the special tokens by their text.
        end_of_turn: the id that ends a turn in which a tool is called; a turn that was cut off is closed by it.
        empty_think: whether answers begin with an empty thought, so that hybrid models do not think.
        thoughts: how answers begin with a thought; None where they have none.
    """

    vocab_size: int
    special_ids: Mapping[str, int]
    end_of_turn: int
    empty_think: bool
    thoughts: ThoughtFormat | None = None

    @property
    @abstractmethod
    def tokenizer(self) -> Tokenizer:
        """The tokenizer itself, with its special tokens."""

    @property
    @abstractmethod
    def syntax(self) -> CallSyntax:
        """How the model writes a tool call."""

    @property
    def ends(self) -> frozenset[int]:
        """The ids at any of which a model has ended its turn, `end_of_turn` among them."""
        return frozenset({self.end_of_turn})

    @abstractmethod
    def start(self, system: str, user: str, tools: Sequence[Mapping[str, Any]] | None = None) -> list[int]:
        """System turn, user turn and what an answer begins with. `tools` are JSON schemas that are shown with them."""

    @abstractmethod
    def tool_response(self, text: str, tool: str = "") -> list[int]:
        """What follows a finished assistant turn: the answer of the `tool` that it called, and the next beginning."""

    @abstractmethod
    def user_turn(self, text: str) -> list[int]:
        """What follows a finished assistant turn when the user writes again, and the next answer's beginning."""

    def continue_after(self, finished: bool, text: str, tool: str = "") -> list[int]:
        """`tool_response` after a completion; a turn that was cut off (`finished` False) is closed first."""
        return ([] if finished else [self.end_of_turn]) + self.tool_response(text, tool)

    @abstractmethod
    def encode_data(self, text: str) -> list[int]:
        """Ids of untrusted text. No id is a special token, whatever `text` contains; lone surrogates become '?'."""

    @abstractmethod
    def encode_assistant(self, text: str) -> list[int]:
        """Ids of an assistant's own answer, end of turn included. `text` is in the project's own form of a call,
        `tool_calls.render_call`; this format's form of it is what is encoded."""

    @abstractmethod
    def messages(self, ids: Sequence[int]) -> ChatMessages:
        """The turns of a conversation as `{"role", "content"}`: system, user, assistant and tool. Calls are in the form
        of `tool_calls.render_call`. A beginning at the end is not a turn until something follows it."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens spelled out. Bytes that are not UTF-8 become U+FFFD."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def thought_text(self, ids: Sequence[int]) -> str:
        """The words of a thought, without what opens and closes it."""
        if self.thoughts is None:
            return ""
        kept = list(ids)
        if self.thoughts.closing in kept:
            kept = kept[: kept.index(self.thoughts.closing)]
        opening = list(self.thoughts.opening)
        begin = next((at for at in range(len(kept)) if kept[at : at + len(opening)] == opening), None)
        return self.decode(kept if begin is None else kept[begin + len(opening) :]).strip()

    def decode_answer(self, ids: Sequence[int]) -> str:
        """Text of a completion without its end of turn."""
        return self.decode(ids[:-1] if ids and ids[-1] in self.ends else ids)

    def parse(self, text: str, tools: dict[str, type[Arguments]]) -> ToolCall | MalformedCall:
        """The call that a completion's text is; see `tool_calls.parse`."""
        return parse(text, tools)
