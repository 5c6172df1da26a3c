"""Text with special tokens and places for data in it, and its token ids.

Structure is placed by id. Everything else is encoded by a copy of the tokenizer that knows none of the special tokens,
neither as added tokens nor in its vocabulary, so no text can open or close a turn.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from tokenizers import AddedToken, Tokenizer, models

_KEPT_TEXTS = 1024  # as many texts are not encoded again
_FIRST_SIGN, _SIGNS = 0x100000, 0xFFFD  # private signs of Unicode, which stand for special tokens in text


@dataclass(frozen=True)
class Slot:
    """A place for data."""

    name: str


@dataclass(frozen=True)
class Special:
    """A special token, as opposed to the same characters in a string."""

    text: str


Piece = str | Slot | Special


class PieceEncoder:
    """Encodes pieces as the tokenizer would encode the whole text, if nothing in the data were a special token.

    `written` are tokens of the vocabulary that a template writes as structure although they are not added tokens.
    """

    def __init__(self, tokenizer: Tokenizer, written: Collection[str] = ()) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.tokenizer = tokenizer
        # White space that was added to a vocabulary is text like any other.
        self.special_ids: Mapping[str, int] = {
            token.content: index for index, token in added.items() if token.special or token.content.strip()
        } | {text: index for text in written if (index := tokenizer.token_to_id(text)) is not None}
        self._strips = {token.content: (token.lstrip, token.rstrip) for token in added.values()}
        self._names = {index: text for text, index in self.special_ids.items()}
        self._signs = {index: chr(_FIRST_SIGN + place % _SIGNS) for place, index in enumerate(sorted(self._names))}
        longest_first = sorted(self.special_ids, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._before = f"<|{secrets.token_hex(8)}|>"  # what stands before a text, so that it is not encoded as a first
        spaces = [token for token in added.values() if token.content not in self.special_ids]
        self._plain = _without(tokenizer, self.special_ids, spaces, self._before)
        size = tokenizer.get_vocab_size(with_added_tokens=False)
        self._real = {
            index: found
            for index, token in self._plain.get_added_tokens_decoder().items()
            if index >= size and (found := tokenizer.token_to_id(token.content)) is not None
        }
        self._encoded = lru_cache(maxsize=_KEPT_TEXTS)(self._encode)

    def split(self, text: str, only: Collection[str] | None = None) -> list[Piece]:
        """`text` at its special tokens, or at those in `only`."""
        pieces: list[Piece] = []
        place = 0
        for found in self.pattern.finditer(text):
            if only is not None and found.group() not in only:
                continue
            pieces += [text[place : found.start()], Special(found.group())]
            place = found.end()
        return [piece for piece in [*pieces, text[place:]] if piece != ""]

    def encode(
        self, pieces: Sequence[Piece], values: Mapping[str, str] = MappingProxyType({}), after: str | None = None
    ) -> list[int]:
        """Token ids of `pieces` with `values` in the slots. `after` is the special token that stands before them, None
        where nothing does. Texts side by side are encoded as one, since merges may cross their border."""
        ids: list[int] = []
        text = ""
        for piece in pieces:
            if isinstance(piece, Special):
                ids += self._run(text, after, piece.text)
                ids.append(self.special_ids[piece.text])
                text, after = "", piece.text
            else:
                text += values[piece.name] if isinstance(piece, Slot) else piece
        return ids + self._run(text, after, None)

    def data(self, text: str) -> list[int]:
        """Ids of untrusted text that stands behind a special token."""
        return list(self._encoded(text, True))

    def marked(self, ids: Sequence[int]) -> str:
        """Text of `ids` with one private sign of Unicode for each special token; no text has such signs."""
        text = ""
        run: list[int] = []
        for index in [*ids, None]:
            if index is not None and index not in self._names:
                run.append(index)
                continue
            decoded: str = self.tokenizer.decode(run, skip_special_tokens=False) if run else ""
            text += "".join("\ufffd" if ord(sign) >= _FIRST_SIGN else sign for sign in decoded)
            text += "" if index is None else self._signs[index]
            run = []
        return text

    def sign(self, special: str) -> str:
        """What stands for a special token in a `marked` text."""
        return self._signs[self.special_ids[special]]

    def unmarked(self, text: str) -> str:
        """A `marked` text with its special tokens spelled out."""
        names = {sign: self._names[index] for index, sign in self._signs.items()}
        return "".join(names.get(sign, sign) for sign in text)

    def matcher(self, pieces: Sequence[Piece]) -> re.Pattern[str]:
        """A pattern for a `marked` text that was made of `pieces`; slots are its groups. Decoders leave out a space
        behind a special token, so white space there is free."""
        pattern = r"\s*"
        free = True
        for piece in pieces:
            if isinstance(piece, Special):
                pattern += re.escape(self.sign(piece.text)) + r"\s*"
            elif isinstance(piece, Slot):
                again = f"(?P<{piece.name}>" in pattern
                pattern += f"(?P={piece.name})" if again else f"(?P<{piece.name}>.*?)"
            else:
                pattern += re.escape(piece.lstrip() if free else piece)
            free = isinstance(piece, Special)
        return re.compile(pattern, re.DOTALL)

    def _run(self, text: str, after: str | None, before: str | None) -> list[int]:
        """Ids of the text between two special tokens; some take the white space beside them."""
        if after is not None and self._strips.get(after, (False, False))[1]:
            text = text.lstrip()
        if before is not None and self._strips.get(before, (False, False))[0]:
            text = text.rstrip()
        return list(self._encoded(text, after is not None)) if text else []

    def _encode(self, text: str, after_special: bool) -> tuple[int, ...]:
        # JSON can smuggle in lone surrogates ("\ud800"), which no UTF-8 tokenizer accepts.
        clean = text.encode("utf-8", "replace").decode("utf-8")
        if after_special:
            ids = self._plain.encode(self._before + clean, add_special_tokens=False).ids[1:]
        else:
            ids = self._plain.encode(clean, add_special_tokens=False).ids
        return tuple(self._real.get(index, index) for index in ids)


def _without(tokenizer: Tokenizer, special: Mapping[str, int], spaces: Sequence[AddedToken], marker: str) -> Tokenizer:
    """A copy of `tokenizer` that cannot make the special tokens out of text, with `marker` as its only one."""
    definition: dict[str, Any] = json.loads(tokenizer.to_str())
    definition["added_tokens"] = []
    definition["post_processor"] = definition["truncation"] = definition["padding"] = None
    model = definition["model"]
    # A name that nobody can write takes the place of each, so that the other ids stay what they are.
    hidden = {text: f"\x00{secrets.token_hex(8)}" for text in special}
    if isinstance(model["vocab"], dict):
        model["vocab"] = {hidden.get(text, text): index for text, index in model["vocab"].items()}
    else:
        model["vocab"] = [[hidden.get(text, text), score] for text, score in model["vocab"]]
    if "merges" in model:
        pairs = [tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge) for merge in model["merges"]]
        model["merges"] = [list(pair) for pair in pairs if not hidden.keys() & {*pair, "".join(pair)}]
    if model.get("unk_token") in hidden:
        model["unk_token"] = hidden[model["unk_token"]]
    plain = Tokenizer.from_str(json.dumps(definition))
    if model["type"] == "BPE" and not model["merges"]:
        plain.model = bytes_model(model["vocab"])
    plain.add_special_tokens([AddedToken(marker, normalized=False, special=True)])
    plain.add_tokens(list(spaces))
    return plain


def bytes_model(vocabulary: dict[str, int]) -> models.BPE:
    """A model that merges nothing. A cache of what was merged would spare nothing; but each new text would stay there,
    some kilobytes of it up to ten thousand times: a session of a month grew by that."""
    return models.BPE(vocab=vocabulary, merges=[], cache_capacity=0)
