"""Masked headlines: what would tell a model which period it looks at, or which coin, is replaced.

A headline is replaced word by word, and only what is known to be harmless stays: ordinary English
(`english_words.txt`), words of the trade, percentages and small numbers. So a name need not be known to be hidden.

| what | becomes |
| --- | --- |
| coins of the market, by ticker and name | their aliases, as in `Mask` |
| other coins | `COIN` |
| years, months, days, quarters, feasts | `DATE` |
| sums of money and price levels | `AMOUNT` |
| numbers of four digits and more, with a fraction, or counted in thousands or millions | `NUMBER` |
| all other names, tickers, addresses, and words that are not known | `ENTITY` |
| the publisher at the end (`… - The Daily News`) | nothing |

A capital makes a word a name where the other words have none. Where every word has one (title case), or none has, a
word is a name if it is not ordinary, or one of those that are often names (`Block`, `Circle`, `Merge`). There a word
next to a name goes with it (`Voyager Digital`), unless it is one of those that are known to stand beside names
(`price`, `says`). What is so full of names that hardly a word is left is withheld.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from itertools import pairwise

from simulator.market.coins import COINS, base_coin

ENTITY, COIN, DATE, AMOUNT, NUMBER = "ENTITY", "COIN", "DATE", "AMOUNT", "NUMBER"
LEAST_WORDS = 3  # ordinary words that a headline must keep to be shown
LEAST_SHARE = 0.34  # of its words
TITLE_SHARE = 0.6  # of the longer words of a sentence begin with a capital: title case
CACHED = 50_000

_SUFFIXES = (
    ("s", ("",)), ("es", ("",)), ("ed", ("", "e")), ("ing", ("", "e")), ("ly", ("",)), ("ies", ("y",)), ("ied", ("y",)),
    ("edly", ("", "e")),
)  # fmt: skip
_CONTRACTED = frozenset(
    f"{verb}n" for verb in ("do", "wo", "ca", "is", "are", "was", "were", "does", "did", "has", "have", "had", "should",
                            "could", "would", "ai", "must", "need")
)  # fmt: skip
_ENDING = re.compile(r"['’](?:s|t|re|ll|ve|d|m|em|til)$", re.IGNORECASE)
_PUBLISHER = re.compile(r"\s+[-|]\s+([^|]+?)$")
_SENTENCE_END = re.compile(  # not in "Oct. 3" and "Mr. Name"
    r"(?<=[.!?…])(?<!\bMrs\.)(?<!\b[MDS][rst]\.)[\"'”’)]*\s+(?![\da-z])"
)
_OPENS = re.compile(r"(?:[.!?:;…\"“‘(\[|•]|\s[-–—*']|^['\"])[\s'\"“‘(\[]*$")
_JOINS = re.compile(r"[ /-]|,? & |\. ?")  # between two words of one name
_PLAIN_GAP = re.compile(r"[^\x20-\x7e“”‘’–—…]")  # emojis, flags and the like are no words, but may say a name


def _sections(name: str) -> dict[str, str]:
    """The sections of a file of words beside this one, by name; lines that begin with `#` say what they hold."""
    text = (files("cryptosentinel.conversation") / name).read_text(encoding="utf-8")
    parts = re.split(r"^\[(\w+)\]$", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


_NAMED = _sections("known_names.txt")
_PHRASES = tuple(_NAMED["phrases"].strip().replace("\n", "|").split("|"))
(
    GIVEN, INSTITUTIONS, COMPANIES, PLACES, TITLES, FUNCTION_WORDS, ACRONYMS, NAMES_OF_COMMON_WORDS,
) = (
    frozenset(_NAMED[section].split())
    for section in ("given", "institutions", "companies", "places", "titles", "function", "acronyms", "common")
)  # fmt: skip

# What a headline is cut into: words, and what is longer than a word, such as dates, sums of money and addresses.
_FULL_MONTHS = "January|February|March|April|June|July|August|September|October|November|December"
_SHORT_MONTHS = "Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept|Sep|Oct|Nov|Dec"
# Shortened and without a capital they are words, but for those before a number.
_MONTHS = rf"{_FULL_MONTHS}|{_FULL_MONTHS.lower()}|{_SHORT_MONTHS}|(?:{_SHORT_MONTHS.lower()})(?=\.? \d)"
_FULL_DAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
_SHORT_DAYS = "Mon|Tues|Tue|Wed|Thurs|Thu|Fri|Sat|Sun"
_DAYS = f"{_FULL_DAYS}|{_FULL_DAYS.lower()}|{_SHORT_DAYS}"
_FEASTS = (
    "Christmas|Xmas|Thanksgiving|Halloween|Easter|Ramadan|Diwali|Hanukkah|Valentine['’]?s?(?: Day)?|Uptober|Rektember|"
    "New Year(?:['’]s)?(?: Eve| Day)?|Black (?:Friday|Thursday|Monday)|Cyber Monday|Halving|Super Bowl"
)
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_YEAR = r"(?:19|20)\d\d"
# "may" is a verb more often than a month: it is one after these, and beside a number.
_BEFORE_MAY = "|".join(
    [
        *(
            rf"(?<=[{first}{first.upper()}]{rest} )May\b"
            for first, rest in ("by", ("l", "ast"), ("t", "his"), ("l", "ate"))
        ),
        *(rf"(?<=[{first}{first.upper()}]{rest} )[Mm]ay\b" for first, rest in ("in", ("s", "ince"))),
    ]
)
_DATE = "|".join(
    (
        r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}",
        rf"\d{{1,2}}[-/.]\d{{1,2}}[-/.](?:{_YEAR}|\d\d)",
        r"(?!24/7)\d{1,2}/\d{1,2}(?![\w/])",
        rf"(?:{_DAY}(?: of)? )?(?:{_MONTHS}|[Mm]ay(?=[ .]{{1,2}}\d))\b\.?(?: {_DAY}(?:\s?[-–]\s?{_DAY})?\b)?"
        rf"(?:,? ?{_YEAR}\b)?",
        rf"{_DAY}(?: of)? [Mm]ay\b(?:,? {_YEAR})?",
        _BEFORE_MAY,
        rf"(?:[Qq][1-4]|[Hh][12]|FY|fy)[ -]?(?:{_YEAR}|['’]?\d\d)?(?!\w)",
        r"[1-4][Qq](?:['’]?\d\d)?\b",
        rf"{_YEAR}(?:['’]?s)?(?:\s?[-–/]\s?(?:{_YEAR}|\d\d))?(?![\w,.]\d)(?!\w)",
        r"['’]\d\d(?!\w)",
        rf"(?:{_DAYS})s?(?!\w)",
        rf"(?i:{_FEASTS})(?!\w)",
    )
)
_UNIT = (
    r"(?:\s?(?:[KkMmBbTt]|[Mm]n|[Mm]ln|[Bb]n|[Tt]n|[Tt]rn|[Tt]housand|[Mm]illion|[Bb]illion|[Tt]rillion|MILLION|"
    r"BILLION)(?![^\W\d_]))"
)
_FIGURE = rf"\d{{1,15}}(?:,\d{{1,3}}){{0,6}}(?:\.\d+)?{_UNIT}?\+?"
_CURRENCY = r"(?:USD|EUR|GBP|JPY|CNY|KRW|INR|AUD|CAD|CHF|HKD|SGD|Rs\.?|RM)"
_MONEY = "|".join(
    (
        rf"(?:[A-Z]{{1,3}})?[$€£¥₹₩₿¢]\s?{_FIGURE}(?:\s?[-–]\s?[$€£¥₹]?{_FIGURE})?",
        rf"(?<!\w){_CURRENCY}\s?{_FIGURE}",
        rf"{_FIGURE}\s?(?:{_CURRENCY}|[Dd]ollars?|[Ee]uros?|[Yy]en|[Cc]ents?|[$€£¥₿])(?!\w)",
        r"(?:one|two|three|four|five|six|seven|eight|nine|ten|half a|a) (?:thousand|million|billion|trillion)(?!\w)",
        r"\d+(?:\.\d+)?[KkMmBb](?!\w)",
    )
)
_PERCENT = r"[-+]?\d{1,4}(?:[.,]\d+)?(?:\s?[-–]\s?\d{1,4}(?:\.\d+)?)?\s?(?:%|percent\b|per cent\b|bps\b)"
_BIG = rf"\d{{1,3}}(?:,\d{{3}}){{1,6}}(?:\.\d+)?{_UNIT}?|\d+\.\d+{_UNIT}?|\d{{4,}}{_UNIT}?|\d+{_UNIT}"
_SMALL = r"\d{1,3}(?:st|nd|rd|th|x|X|h|hr|hrs|d|am|pm|AM|PM)?(?!\w)"
_DOMAINS = (
    "com|org|net|io|fi|finance|eth|xyz|co|ai|app|tech|gg|art|money|exchange|network|market|news|info|tv|me|us|uk|fun|"
    "world|one"
)
_ADDRESS = rf"https?://\S+|www\.\S+|(?<!\w)[@#][\w.]+|\w[\w-]{{0,60}}(?:\.\w[\w-]{{0,60}}){{0,3}}\.(?:{_DOMAINS})(?!\w)"
_INITIALS = r"(?<!\w)(?:[A-Za-z]\.){2,}(?:[A-Z](?!\w))?|(?<!\w)[A-Z]&[A-Z](?!\w)(?: \d+)?"
_WORD = r"[^\W_]+(?:['’][^\W\d_]+)*"
# The kinds come in the order in which they are tried. Repetitions are bounded, so that no text takes long.
_SCANNER = re.compile(
    "|".join(
        f"(?P<{kind}>{pattern})"
        for kind, pattern in {
            "address": _ADDRESS, "initials": _INITIALS, "cashtag": r"\$[A-Za-z]\w{1,9}(?!\w)", "money": _MONEY,
            "percent": _PERCENT, "date": _DATE, "big": _BIG, "small": _SMALL, "word": _WORD,
        }.items()
    )
)  # fmt: skip
_START = re.compile(r"[^\W_]|[$€£¥₹₩₿¢@#'’+-]")
_FIRST_WORD = re.compile(r"[^\W_]+")


def _next_piece(sentence: str, begin: int) -> re.Match[str] | None:
    """The next piece of a sentence from `begin` on; `lastgroup` is its kind."""
    start = _START.search(sentence, begin)  # a search for a character is faster than one for all kinds
    return None if start is None else _SCANNER.search(sentence, start.start())


class _Words:
    """Ordinary words: those that may have a capital, and those that may not."""

    def __init__(self) -> None:
        words = _sections("english_words.txt")
        any_case, lower, beside = words["any"], words["lower"], words["beside"]
        names = GIVEN | NAMES_OF_COMMON_WORDS
        self._lower = frozenset(lower.split()) | (frozenset(any_case.split()) & GIVEN)
        self._any_case = frozenset(any_case.split()) - names
        self._all = (self._any_case | self._lower) - NAMES_OF_COMMON_WORDS
        known = frozenset(beside.split()) | FUNCTION_WORDS
        self._beside = known | {stem for word in known for stem in _stems(word, 3) if stem in self._all}

    def lower(self) -> list[str]:
        """All of them, in small letters and in order."""
        return sorted(self._all)

    @lru_cache(maxsize=CACHED)  # noqa: B019 - there is one instance
    def ordinary(self, word: str) -> bool:
        """Whether `word`, in small letters, is an ordinary one."""
        return word not in NAMES_OF_COMMON_WORDS and _covers(self._all, word)

    @lru_cache(maxsize=CACHED)  # noqa: B019
    def trusted(self, word: str) -> bool:
        """Whether `word`, given in small letters, is an ordinary one with a capital, too."""
        return (
            word not in self._lower
            and word not in GIVEN
            and word not in NAMES_OF_COMMON_WORDS
            and _covers(self._any_case, word)
        )

    @lru_cache(maxsize=CACHED)  # noqa: B019
    def stands_beside(self, word: str) -> bool:
        """Whether `word`, in small letters, is not a part of a name that it stands next to."""
        return word not in INSTITUTIONS and (word in self._beside or any(s in self._beside for s in _stems(word, 3)))


def _covers(words: frozenset[str], word: str) -> bool:
    """Whether `word` is one of `words`, or a regular form of one."""
    return word in words or any(stem in words for stem in _stems(word, 4))


def _stems(word: str, least: int) -> Iterator[str]:
    """What `word` may be a regular form of, with at least that number of letters."""
    for suffix, endings in _SUFFIXES:
        if word.endswith(suffix):
            for ending in endings:
                stem = word[: -len(suffix)] + ending
                if len(stem) >= least:
                    yield stem


@lru_cache(maxsize=1)
def _words() -> _Words:
    return _Words()


def ordinary_words() -> list[str]:
    """The words that every masked headline may keep, in small letters and in order."""
    return _words().lower()


def words_beside_names() -> list[str]:
    """Those of `ordinary_words` that a masked headline keeps beside a name, too."""
    return [word for word in ordinary_words() if _words().stands_beside(word)]


_SMALL_ACRONYMS = frozenset(word.lower() for word in ACRONYMS)
_NAMES = {name: ticker for ticker, names in COINS.items() for name in names}
_REPLACEMENTS = {
    "address": ENTITY, "initials": ENTITY, "cashtag": COIN, "money": AMOUNT, "date": DATE, "big": NUMBER,
}  # fmt: skip


@dataclass
class _Piece:
    """A part of a headline that is not white space or punctuation. `gap` is what stands before it.

    `shown` is what becomes of it: itself, a placeholder, or for a coin its ticker.
    """

    gap: str
    kind: str
    text: str
    shown: str
    opens: bool  # a sentence, or what is quoted
    begin: int  # in the headline

    @property
    def is_coin(self) -> bool:
        return self.kind == "coin"

    @property
    def is_capitalised(self) -> bool:
        return self.kind == "word" and self.text[0].isupper()

    @property
    def is_kept_word(self) -> bool:
        return self.kind == "word" and self.shown is self.text


@dataclass(frozen=True)
class MaskedHeadline:
    """A headline with its names replaced.

    `parts` are pieces of text and tickers in turn, beginning and ending with text. `kept` is where the original's words
    and numbers stand that are shown as they were. `replaced` counts the placeholders and the coins; `withheld` says
    that hardly a word was left.
    """

    parts: tuple[str, ...]
    kept: tuple[tuple[int, int], ...]
    replaced: int
    withheld: bool

    def text(self, aliases: Mapping[str, str]) -> str:
        """The headline with each coin's alias, or `COIN` where it has none."""
        return "".join(aliases.get(part, COIN) if place % 2 else part for place, part in enumerate(self.parts))


@lru_cache(maxsize=CACHED)
def masked_headline(text: str, others: frozenset[str] = frozenset()) -> MaskedHeadline:
    """`text`, a cleaned line, with its names replaced. `others` are bases of traded symbols that `COINS` may lack.

    The result depends on nothing but the arguments, so it is computed once for each headline.
    """
    body = _without_publisher(text)
    pieces: list[_Piece] = []
    tail = ""
    begin = 0
    for sentence in _sentences(body):
        found, rest = _pieces(sentence, begin, others)
        begin += len(sentence)
        if found:
            found[0].gap = tail + found[0].gap
            tail = ""
        _judge(found)
        pieces += found
        tail += rest
    shown = [piece for piece in pieces if piece.shown is piece.text and not piece.is_coin]
    kept = sum(piece.is_kept_word or piece.is_coin for piece in pieces)
    names = sum(piece.shown == ENTITY for piece in pieces)
    joined = _joined(pieces)
    parts = [""]
    for piece in joined:
        parts[-1] += _PLAIN_GAP.sub("", piece.gap)
        if piece.is_coin:
            parts += [piece.shown, ""]
        else:
            parts[-1] += piece.shown
    parts[-1] += _PLAIN_GAP.sub("", tail)
    replaced = sum(piece.shown is not piece.text for piece in joined) + (body != text)
    withheld = names > 0 and (kept < LEAST_WORDS or kept < LEAST_SHARE * (kept + names))
    ranges = tuple((piece.begin, piece.begin + len(piece.text)) for piece in shown)
    return MaskedHeadline(tuple(parts), ranges, replaced, withheld)


def _without_publisher(text: str) -> str:
    """`text` without ` - The Daily News` at its end."""
    end = _PUBLISHER.search(text)
    if end is None or len(text[: end.start()].split()) < LEAST_WORDS:
        return text
    words = end[1].split()
    named = all(not word[0].islower() or "." in word or word in ("of", "the", "in", "and", "for") for word in words)
    return text[: end.start()] if named and len(words) <= 6 else text


def _sentences(text: str) -> Iterator[str]:
    begin = 0
    for end in _SENTENCE_END.finditer(text):
        yield text[begin : end.end()]
        begin = end.end()
    yield text[begin:]


def _pieces(sentence: str, offset: int, others: frozenset[str]) -> tuple[list[_Piece], str]:
    """The pieces of a sentence that begins at `offset`, and what stands after the last. What is sure is replaced."""
    pieces: list[_Piece] = []
    lower = sentence.lower()
    end = 0
    while match := _next_piece(sentence, end):
        kind, begin, stop = str(match.lastgroup), match.start(), match.end()
        shown = _REPLACEMENTS.get(kind)
        if kind in ("word", "small", "date") and (name := _name_at(sentence, lower, begin)):
            stop, kind, shown = name
        elif kind == "word":
            stem = _ENDING.sub("", match[0])
            written = stem.upper() if stem.islower() and len(stem) > 2 and not _words().ordinary(stem) else stem
            ticker = written if written in COINS or written in others else base_coin(written)
            if ticker in COINS or ticker in others:
                stop, kind, shown = begin + len(stem), "coin", ticker
        gap, text = sentence[end:begin], sentence[begin:stop]
        opens = not pieces or _OPENS.search(gap) is not None
        pieces.append(_Piece(gap, kind, text, text if shown is None else shown, opens, offset + begin))
        end = stop
    return pieces, sentence[end:]


def _name_at(sentence: str, lower: str, begin: int) -> tuple[int, str, str] | None:
    """Where a listed name that begins at `begin` ends, its kind, and what is shown for it; None where there is none."""
    first = _FIRST_WORD.match(lower, begin)
    for name, ticker, any_case in _index().get(first[0], ()) if first else ():
        stop = begin + len(name)
        if not lower.startswith(name.lower(), begin) or (stop < len(lower) and lower[stop].isalnum()):
            continue
        if any_case or sentence[begin:stop] in (name, name.upper()):
            return stop, *(("phrase", ENTITY) if ticker is None else ("coin", ticker))
    return None


@lru_cache(maxsize=1)
def _index() -> dict[str, list[tuple[str, str | None, bool]]]:
    """The listed names by their first word in small letters, the longest first: the name, the ticker of a coin, and
    whether it is a name however it is written, since it is not an ordinary word."""
    index: dict[str, list[tuple[str, str | None, bool]]] = {}
    listed: dict[str, str | None] = dict.fromkeys(_PHRASES) | _NAMES
    for name in sorted(listed, key=len, reverse=True):
        if first := _FIRST_WORD.match(name.lower()):
            any_case = " " in name or name.lower() in NAMES_OF_COMMON_WORDS or not _words().ordinary(name.lower())
            index.setdefault(first[0], []).append((name, listed[name], any_case))
    return index


def _judge(pieces: list[_Piece]) -> None:
    """Replace the words of a sentence that are not ordinary ones, or are names by how they are written."""
    words = _words()
    long = [piece.text for piece in pieces if piece.kind == "word" and len(piece.text) > 3 and not piece.opens]
    ordinary = [text for text in long if words.ordinary(_stem(text).lower())]
    capitals = sum(text[0].isupper() for text in ordinary)
    title = capitals >= TITLE_SHARE * len(ordinary) and bool(ordinary)
    small = not any(piece.text[0].isupper() for piece in pieces if piece.kind in ("word", "coin", "phrase"))
    shouted = len(long) > 2 and sum(text.isupper() for text in long) >= TITLE_SHARE * len(long)
    for piece in pieces:
        if piece.kind == "word" and not _may_stay(piece, title or shouted, small, shouted):
            piece.shown = ENTITY + _possessive(piece.text)
    for before, piece in pairwise(pieces):
        if piece.is_kept_word and (piece.is_capitalised or small) and piece.gap in (" ", "-"):
            given = before.text.lower() in GIVEN and (before.is_capitalised or not _speaks(piece.text))
            hyphened = piece.gap == "-" and piece.is_capitalised  # of one name with what stands before it
            if given or (before.shown == ENTITY and (hyphened or _stem(piece.text).lower() in INSTITUTIONS)):
                piece.shown = ENTITY + _possessive(piece.text)
        if piece.is_kept_word and piece.is_capitalised and before.text.lower() in TITLES and piece.gap in (" ", ". "):
            piece.shown = ENTITY + _possessive(piece.text)
        if piece.is_kept_word and before.shown == ENTITY and piece.gap == ".":
            piece.shown = ENTITY  # an address whose end is not listed
        if before.is_coin and piece.gap == "-" and len(piece.text) == 1:
            before.kind, before.shown, piece.shown = "phrase", ENTITY, ENTITY  # BTC-e
        if before.shown == ENTITY and piece.kind == "small" and piece.gap in (" ", "-"):
            piece.shown = ENTITY  # S&P 500, Boeing 737
        place = before.is_kept_word and before.is_capitalised and before.text.lower() in PLACES
        firm = before.is_kept_word and before.is_capitalised and _stem(piece.text).lower() in INSTITUTIONS
        if (place or firm) and piece.shown.startswith(ENTITY) and piece.gap == " ":
            before.shown = ENTITY  # Movement Labs: the first word may have its capital from the sentence's beginning
    for first, second, third in zip(pieces, pieces[1:], pieces[2:], strict=False):
        of = second.text in ("of", "for") and third.shown.startswith(ENTITY)
        if of and first.is_kept_word and first.is_capitalised and _stem(first.text).lower() in INSTITUTIONS:
            first.shown = ENTITY
    if small:
        _judge_without_capitals(pieces)
    _hide_rest_of_names(pieces, title or shouted, small)


def _hide_rest_of_names(pieces: list[_Piece], title: bool, small: bool) -> None:
    """Hide what may be the rest of a name that was made of ordinary words: a word next to a name, and the next to that,
    unless it is known to stand beside names. Only where its capital, or that it has none, does not tell."""

    def may_belong(piece: _Piece, gap: str) -> bool:
        if not piece.is_kept_word or gap not in (" ", "-", " & ") or piece.text in ACRONYMS:
            return False
        unclear = small or (piece.is_capitalised and (title or piece.opens))
        return unclear and not _words().stands_beside(_stem(piece.text).lower())

    for before, piece in pairwise(pieces):
        if (before.is_coin or before.shown.startswith(ENTITY)) and may_belong(piece, piece.gap):
            piece.shown = ENTITY + _possessive(piece.text)
    for piece, after in pairwise(reversed(pieces)):
        if (piece.is_coin or piece.shown.startswith(ENTITY)) and may_belong(after, piece.gap):
            after.shown = ENTITY + _possessive(after.text)


def _judge_without_capitals(pieces: list[_Piece]) -> None:
    """In a sentence without a capital, a firm is known by its last word and by the ticker in brackets behind it:
    `beta finance (beta) trades higher`, `horizon finance co.`, `ENTITY home finance`, `ENTITY & investment group`."""
    for place in range(1, len(pieces)):
        before, piece = pieces[place - 1], pieces[place]
        after = pieces[place + 1].gap if place + 1 < len(pieces) else ")"
        if piece.gap == " (" and piece.kind == "word" and after.startswith((")", ":")):
            if piece.is_kept_word:
                piece.shown = ENTITY
            _hide_firm(pieces, place - 1)
        elif piece.text in COMPANIES and piece.gap in (" ", ", "):
            _hide_firm(pieces, place)
        elif piece.is_kept_word and piece.text in INSTITUTIONS and piece.gap == " ":
            named = place > 1 and before.is_kept_word and not _speaks(before.text) and before.gap == " "
            if before.shown == ENTITY or (named and pieces[place - 2].shown == ENTITY):
                before.shown = piece.shown = ENTITY
        elif piece.is_kept_word and before.shown == ENTITY and piece.gap == " & ":
            _hide_firm(pieces, min(place + 1, len(pieces) - 1))


def _hide_firm(pieces: list[_Piece], last: int) -> None:
    """Hide the words of a firm that ends at `last`, with at most four before it."""
    for piece in reversed(pieces[max(0, last - 4) : last + 1]):
        if piece.kind != "word" or piece.is_coin or _speaks(piece.text):
            break
        if piece.is_kept_word:
            piece.shown = ENTITY


def _speaks(word: str) -> bool:
    """Whether a word in small letters stands between names and is not a part of one."""
    return word.lower() in FUNCTION_WORDS


def _may_stay(piece: _Piece, title: bool, small: bool, shouted: bool) -> bool:
    """Whether a word is harmless as it is written, in a sentence in title case, without
    any capital, or all in capitals."""
    words = _words()
    text = _stem(piece.text)
    if piece.text in ACRONYMS or text in ACRONYMS:
        return True
    if len(text) == 1:
        return text.islower() or text in "AI"
    lower = text.lower()
    if text.islower():
        # Where nothing has a capital, a name has none either.
        return (words.trusted(lower) or text in _SMALL_ACRONYMS) if small else words.ordinary(lower)
    if (text.isupper() and not shouted) or not (text.isupper() or text[1:].islower()):
        return False
    return words.trusted(lower) and (title or piece.opens)


def _stem(word: str) -> str:
    """`word` without an ending of possession or contraction."""
    stem = _ENDING.sub("", word)
    if stem != word and word[-1] in "tT" and stem.lower().endswith("n") and stem.lower() in _CONTRACTED:
        return "not" if word.islower() else "Not"  # don't, won't: as harmless as that
    return stem


def _possessive(word: str) -> str:
    return word[-2:] if word[-2:] in ("'s", "’s") else ""


def _joined(pieces: list[_Piece]) -> list[_Piece]:
    """The pieces with the placeholders of one name made one."""
    joined: list[_Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last is not None and last.shown == ENTITY and piece.shown.startswith(ENTITY) and _JOINS.fullmatch(piece.gap):
            joined[-1] = replace(piece, gap=last.gap, opens=last.opens)
        elif last is not None and last.shown == piece.shown in (DATE, NUMBER) and piece.gap in (" ", ", ", "-", "–"):
            continue
        else:
            joined.append(piece)
    return joined
