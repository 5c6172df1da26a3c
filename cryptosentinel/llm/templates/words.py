"""Turn markers that are ordinary text: found in a template's pieces, and broken in whatever stands in their places.

Most templates open and close turns with special tokens, which text cannot become. Those of Llama 2, Mistral 0.1 and
Vicuna do it with words: `[/INST]`, `ASSISTANT:`. There a text that holds the words would be read as a turn.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from cryptosentinel.llm.templates.pieces import Piece, Slot, Special

_MOST_PASSES = 8


class WordMarkers:
    """The words with which a template turns over from a text to an answer, or to another speaker's turn.

    Args:
        conversations: pieces of a template's conversations, each up to where an answer begins.
    """

    def __init__(self, conversations: Sequence[Sequence[Piece]]) -> None:
        behind = [words for pieces in conversations for words in _behind_slots(pieces) if _is_word(words)]
        # Where words close a turn, those that open one are read as such too, special token or not.
        before = [words for pieces in conversations for words in _before_slots(pieces)] if behind else []
        found = {line.strip() for words in (*behind, *before) for line in words.splitlines()}
        self.words: list[str] = []
        for line in sorted(filter(_is_word, found), key=lambda line: (len(line), line)):
            for shorter in self.words:  # `[INST] <<SYS>>` is two of them
                line = re.sub(re.escape(shorter), "", line, flags=re.IGNORECASE).strip()
            if _is_word(line):
                self.words.append(line)
        self._pattern = re.compile("|".join(map(_pattern_of, self.words)) or r"(?!)", re.IGNORECASE)

    def broken(self, text: str) -> str:
        """`text` with a space inside each marker, in whatever case and white space it is written."""
        if not self.words:
            return text
        plain = unicodedata.normalize("NFKC", text)  # as many tokenizers read it
        if not self._pattern.search(plain):
            return text
        for _ in range(_MOST_PASSES):
            plain, count = self._pattern.subn(_apart, plain)
            if not count:
                break
        return plain


def _is_word(text: str) -> bool:
    return any(sign.isalnum() for sign in text)


def _apart(found: re.Match[str]) -> str:
    return f"{found[0][0]} {found[0][1:]}"


def _pattern_of(words: str) -> str:
    return r"\s+".join(re.escape(word) for word in words.split())


def _behind_slots(pieces: Sequence[Piece]) -> Iterable[str]:
    """The text from each slot to the next, or to the end, where no special token stands in it."""
    for place, piece in enumerate(pieces):
        if isinstance(piece, Slot):
            run = _until_slot(pieces[place + 1 :])
            if not any(isinstance(one, Special) for one in run):
                yield "".join(one for one in run if isinstance(one, str))


def _before_slots(pieces: Sequence[Piece]) -> Iterable[str]:
    """The text before each slot, from the last special token or slot on."""
    for place, piece in enumerate(pieces):
        if isinstance(piece, Slot):
            run = _until_slot(list(reversed(pieces[:place])))
            last = next((at for at, one in enumerate(run) if isinstance(one, Special)), len(run))
            yield "".join(one for one in reversed(run[:last]) if isinstance(one, str))


def _until_slot(pieces: Sequence[Piece]) -> list[Piece]:
    end = next((at for at, one in enumerate(pieces) if isinstance(one, Slot)), len(pieces))
    return list(pieces[:end])
