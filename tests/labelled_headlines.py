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
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from cryptosentinel.conversation.headlines import MaskedHeadline, masked_headline
from cryptosentinel.conversation.masking import MAX_TEXT_CHARS
from cryptosentinel.protocol.untrusted import clean

HERE = Path(__file__).resolve().parent
LABELS = HERE / "headline_labels.json"
_SPAN = re.compile(r"(\d+)-(\d+)([A-Z])")


@dataclass
class Recall:
    """What of the labelled spans was masked, by kind; `missed` are file, hash and span of what was not; `by_headline`
    are the spans of each headline and how many of them were missed."""

    headlines: int = 0
    clean: int = 0  # headlines of which every span was masked
    withheld: int = 0
    spans: Counter[str] = field(default_factory=Counter)
    caught: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    by_headline: list[tuple[int, int]] = field(default_factory=list)
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
        texts = {_digest(text): text for text in headlines_of(folder / file)}
        for digest, *spans in labels["read_later"][file]:
            masked = masked_headline(texts[digest])
            recall.read_later += 1
            recall.clean_later += all(_is_hidden(texts[digest], masked, *_parsed(span)[:2]) for span in spans)
        for digest, *spans in rows:
            text = texts[digest]
            masked = masked_headline(text)
            recall.headlines += 1
            recall.withheld += masked.withheld
            missed_before = len(recall.missed)
            for span in spans:
                begin, end, kind = _parsed(span)
                hidden = _is_hidden(text, masked, begin, end)
                recall.spans[kind] += 1
                recall.caught[kind] += hidden
                if not hidden:
                    recall.missed.append(f"{file} {digest} {span}")
            missed = len(recall.missed) - missed_before
            recall.by_headline.append((len(spans), missed))
            recall.clean += missed == 0
    return recall


def _is_hidden(text: str, masked: MaskedHeadline, begin: int, end: int) -> bool:
    left = [text[max(begin, a) : min(end, b)] for a, b in masked.kept if a < end and b > begin]
    whole = sum(map(len, left)) == sum(letter.isalnum() for letter in text[begin:end])
    return masked.withheld or (not whole and all(word.islower() and len(word) <= 3 for word in left))


def headlines_of(path: Path) -> list[str]:
    """The headlines of a file, cleaned as a team would read them."""
    names = pq.read_schema(path).names
    column = pq.read_table(path, columns=["title" if "title" in names else "text"]).column(0).to_pylist()
    return [clean(text or "", MAX_TEXT_CHARS) for text in column]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _parsed(span: str) -> tuple[int, int, str]:
    match = _SPAN.fullmatch(span)
    assert match is not None
    return int(match[1]), int(match[2]), match[3]
