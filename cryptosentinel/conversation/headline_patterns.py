"""What a headline is cut into: words, and what is longer than a word, such as dates, sums of money and addresses."""

from __future__ import annotations

import re

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
_PLAIN_WORD = re.compile(rf"{_WORD}(?![\w.@&$€£¥₹₿¢-]|://)")
_DIGIT = re.compile(r"\d")
FIRST_WORD = re.compile(r"[^\W_]+")
# Words that may begin something longer than a word. All others need no scanner, which takes most of the time.
_OTHERS = (
    "xmas|thanksgiving|christmas|halloween|easter|ramadan|diwali|hanukkah|valentine|may|new|black|cyber|halving|super|"
    "uptober|rektember|usd|eur|gbp|jpy|cny|krw|inr|aud|cad|chf|hkd|sgd|rs|rm|fy|one|two|three|four|five|six|seven|eight|"
    "nine|ten|half|a"
)
_BEGINNINGS = frozenset(
    f"{word}{ending}".lower()
    for word in f"{_FULL_MONTHS}|{_SHORT_MONTHS}|{_FULL_DAYS}|{_SHORT_DAYS}|{_OTHERS}".split("|")
    for ending in ("", "s", "'s", "’s")
)


def next_piece(sentence: str, begin: int) -> re.Match[str] | None:
    """The next piece of a sentence from `begin` on; `lastgroup` is its kind, None for a plain word."""
    start = _START.search(sentence, begin)
    if start is None:
        return None
    if sentence[start.start()].isalpha():
        word = _PLAIN_WORD.match(sentence, start.start())
        if word is not None and word[0].lower() not in _BEGINNINGS and not _DIGIT.search(word[0]):
            return word
    return _SCANNER.search(sentence, start.start())
