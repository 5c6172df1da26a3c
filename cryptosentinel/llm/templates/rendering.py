"""A chat template with marks in the place of data: what it writes around them is the structure of a conversation.

The marks are random words, so nothing that is later put in their places can change what the template writes.
"""

from __future__ import annotations

import datetime
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from cryptosentinel.llm.templates.limits import check_program, limited
from cryptosentinel.llm.templates.pieces import Piece, PieceEncoder, Slot

TurnMessage = dict[str, Any]

# Some templates write the date of the day. A fixed one makes the same conversation of the same words on any day.
_TODAY = datetime.datetime(2024, 7, 26)
_FAILURES = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class CannotRender(Exception):
    """The template refuses these messages, or does not show what is in them."""


@dataclass
class Marks:
    """Random words, each for a slot."""

    names: dict[str, str] = field(default_factory=dict)  # from word to slot

    def new(self, slot: str) -> str:
        """A word that stands for the slot."""
        word = f"q{secrets.token_hex(10)}z"
        self.names[word] = slot
        return word

    def pieces(self, text: str, encoder: PieceEncoder) -> list[Piece]:
        """A rendered text with slots and special tokens."""
        pieces: list[Piece] = []
        for part in re.split(f"({'|'.join(self.names) or '(?!)'})", text):
            pieces += [Slot(self.names[part])] if part in self.names else encoder.split(part)
        return pieces


@dataclass(frozen=True)
class Renderer:
    """A template with its variables. `style`: whether contents are text, or lists of parts as of models that see."""

    template: str
    variables: Mapping[str, Any]
    style: Literal["text", "parts"] = "text"

    def render(
        self, messages: Sequence[TurnMessage], tools: Sequence[Mapping[str, Any]] | None = None, *, begin: bool = True
    ) -> str:
        """What the template writes; with `begin` the next answer's beginning too. Raises `CannotRender`, and
        `OverLimit` for a template that takes too much."""
        told = [self._styled(message) for message in messages]
        try:
            check_program(self.template)
            with limited():
                rendered: Any = render_jinja_template(
                    [told],
                    tools=None if tools is None else [dict(tool) for tool in tools],
                    chat_template=self.template,
                    add_generation_prompt=begin,
                    strftime_now=_TODAY.strftime,
                    **self.variables,
                )
        except _FAILURES as error:
            raise CannotRender(" ".join(str(error).split())[:200] or type(error).__name__) from error
        return str(rendered[0][0])

    def shows(self, words: Sequence[str], messages: Sequence[TurnMessage], **more: Any) -> str:
        """The rendering, if each of `words` is in it once and in this order. Raises `CannotRender`."""
        text = self.render(messages, **more)
        places = [text.find(word) for word in words]
        if -1 in places or any(text.count(word) > 1 for word in words) or places != sorted(places):
            raise CannotRender("a message's text is left out, repeated or moved")
        return text

    def _styled(self, message: TurnMessage) -> TurnMessage:
        if self.style == "text" or not isinstance(message.get("content"), str):
            return message
        return {**message, "content": [{"type": "text", "text": message["content"]}]}
