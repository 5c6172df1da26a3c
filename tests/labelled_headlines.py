"""Hand-labelled headlines of the recorded news: what in them names a person, a firm, a place, a coin, a date, a sum
or an event.

`headline_labels.json` holds no text: a row is the start of the SHA-256 of a cleaned headline, and the spans in it
(`61-79O`: characters 61 to 78, kind O). The headlines were drawn at random, and labelled by reading them, after the
word lists were written. The lists were written while looking at other headlines: `cryptonews-2021-2022`,
`cryptotrade-2023` up to June, and another 170 of the files here. What was missed in the labelled ones has been mended
since, so they say no longer how much gets through. `read_later` are headlines that were drawn and read after that, of
those that no list was counted in: only what got through then is labelled, parts of names too. Bitcoin and Ether are not
labelled; percentages, small numbers and words of the trade (ETF, CEO) are no names. Of a span, small words of up to
three letters (`of`, `the`) may stay.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from cryptosentinel.conversation.headlines import MaskedHeadline, masked_headline
from cryptosentinel.conversation.masking import MAX_TEXT_CHARS
from cryptosentinel.protocol.untrusted import clean

HERE = Path(__file__).resolve().parent
LABELS = HERE / "headline_labels.json"
_SPAN = re.compile(r"(\d+)-(\d+)[A-Z]")


@dataclass
class Recall:
    """How many headlines had every span masked, in each of the two samples, and how many spans were, of how many."""

    headlines: int = 0
    clean: int = 0
    spans: int = 0
    caught: int = 0
    read_later: int = 0
    clean_later: int = 0


def news_folder() -> Path | None:
    """The recorded news, which are not part of the project; None where they are absent."""
    base = Path(os.environ.get("CRYPTOSENTINEL_SHARED", HERE.parent.parent / "shared"))
    folder = base / "market-data" / "news"
    return folder if folder.is_dir() else None


def measured(folder: Path) -> Recall:
    """The recall of the masking on the labelled headlines. Raises `KeyError` where the news lacks one of them."""
    recall, labels = Recall(), json.loads(LABELS.read_text())
    for file, rows in labels["files"].items():
        texts = {hashlib.sha256(text.encode()).hexdigest()[:16]: text for text in headlines_of(folder / file)}
        for digest, *spans in labels["read_later"][file]:
            recall.read_later += 1
            recall.clean_later += all(_hidden(texts[digest], spans))
        for digest, *spans in rows:
            hidden = _hidden(texts[digest], spans)
            recall.headlines += 1
            recall.clean += all(hidden)
            recall.spans += len(hidden)
            recall.caught += sum(hidden)
    return recall


def _hidden(text: str, spans: list[str]) -> list[bool]:
    """Of each span whether it was masked."""
    masked, found = masked_headline(text), []
    for span in spans:
        match = _SPAN.fullmatch(span)
        assert match is not None
        found.append(_is_hidden(text, masked, int(match[1]), int(match[2])))
    return found


def _is_hidden(text: str, masked: MaskedHeadline, begin: int, end: int) -> bool:
    left = [text[max(begin, a) : min(end, b)] for a, b in masked.kept if a < end and b > begin]
    whole = sum(map(len, left)) == sum(letter.isalnum() for letter in text[begin:end])
    return masked.withheld or (not whole and all(word.islower() and len(word) <= 3 for word in left))


def headlines_of(path: Path) -> list[str]:
    """The headlines of a file, cleaned as a team would read them."""
    names = pq.read_schema(path).names
    column = pq.read_table(path, columns=["title" if "title" in names else "text"]).column(0).to_pylist()
    return [clean(text or "", MAX_TEXT_CHARS) for text in column]
