"""Finds words that the project does not use: `python -m scripts.check_words`.

Read are the pages in Markdown, the presets and templates, and of the product's code the docstrings and the strings in
which words stand. Code between backticks, blocks of code and addresses are left out. A name is looked at where it is
defined. The command prints each place with what to write there, and ends with exit code 1 where there is one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("simulator", "cryptosentinel", "backend", "ui")
TEXTS = ("*.md", "docs/**/*.md", "configs/*.toml", "experiments/*.toml", "backend/**/*.j2")
# What is refused, as a regular expression without regard to case, and what to write.
WORDS = {
    r"by lot": "at random",
    r"(?:go|goes|going|went|gone) on": "continue, resume",
    r"no difference (?:is|was|can be) (?:shown|told|seen)": "not statistically significant, no measurable difference",
    r"(?:less|minus|over|than|against|beats?|from) its beginning|warm-started (?:team|one)": "the initial team",
    r"(?:no-edge )?twins?(?: without edge)?": "no-edge control",
    r"nothing (?:is|was|has been|had been) tuned on": "held-out",
    r"intervals?[^.;]{0,40} (?:holds?|held|holding) (?:0|zero)": "the interval includes 0",
    r"(?<!much )less (?:1|3|the|its|their|those|that of|what|gains|holding|[B-Z])": "minus, versus",
    r"mend(?:s|ed|ing)?": "fix",
    r"not shown (?:on|over|in) (?:\w+ )?windows?": "too small to detect in N windows",
    r"heed(?:s|ed|ing)?": "follow",
    r"quiet (?:machine|computer|core)s?": "idle machine",
    r"anew": "again",
    r"whoever|whomever|whichever": "the user, any",
    r"dear(?:er|est)?": "expensive; at what cost does the edge vanish?",
    r"strangers?": "someone else's, untrusted",
    r"without a word": "silently",
    r"so many": "up to N",
    r"(?:spoken|spoke|speak(?:s|ing)?)(?! (?:for|against))": "used, conversation",
    r"look-ups?|lookups cost": "each lookup costs",
    r"of one's own": "your own",
    r"called otherwise": "was renamed to",
    r"whom? (?:is|was|are|were) asked": "the roles it consults",
    r"what is practi[cs]ed": "practice on",
    r"thousandths of the outcome": "basis points of return, outcome score",
    r"what the evidence allows": "the achievable value",
    r"(?:file|field|process|column|row|manifest) (?:says?|said|tells?|told|hears?|heard)": (
        "contains, reports, is set to"
    ),
    r"(?:file|field|process|server) (?:is|was) silent": "does not respond",
    r"(?<!there )(?:is|are|was|were) no(?= [\w*])(?! (?:longer|more|less|better|worse|larger|other|change)\b)": "not a",
    r"(?<!there )(?:is|are|was|were) (?-i:none)(?=[.,;]|$| of its| as )": "is invalid, is missing",
    # Spelling.
    r"\w*(?:token|optim|quant|recogn|normal|standard|real|initial|serial|random|summar|maxim|minim|penal|final|general|"
    r"annual|util|organ|student)is(?:e|ed|es|er|ing|ation)": "-ize",
    r"(?:behaviour|colour|favour|neighbour|honour|labour)\w*": "-or",
    r"centr(?:e|es|ed)": "center",
    r"analys(?:ed|ing)": "analyze",
    r"practis(?:e|ed|es|ing)": "practice",
    r"artefacts?": "artifact",
    r"sceptic(?:s|al)?": "skeptic",
    r"(?:label|model|travel|signal)l(?:ed|ing|ings)": "one l, as in labeled",
    r"defence|licence|judgement|catalogue": "defense, license, judgment, catalog",
}
NAMES = {
    "Judge": "RewardFunctions",
    "Thoughts": "ThinkingRecorder",
    "Succession": "TeamHandover",
    "_Untold": "NullRecorder",
    "Thinker": "DeadlineRunner",
    "Kept": "LruCache",
    "_last_words": "_log_tail",
    "told": "reported",
    "spoken_metrics": "conversation_metrics",
    "begun_at": "drop_before",
    "how_to_trust": "untrusted_settings_hint",
    "all_by_lot": "random_all",
    "hesitant": "skip_trades",
}
_WORDS = [
    (re.compile(rf"(?<![\w-])(?:{words})(?![\w-])".replace(" ", r"\s"), re.IGNORECASE), write)
    for words, write in WORDS.items()
]
# Words that decide numbers: a seed's label gives another market, a tool's description is read by the trained weights.
_KEPT = re.compile(r"seed|\bTool$")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`|\w+://[^\s)]*|\]\([^)]*\)", re.M | re.S)


@dataclass(frozen=True)
class Finding:
    """A word that is not used, where it stands, and what to write there."""

    place: str
    word: str
    write: str


def in_text(text: str, place: str, first: int = 1) -> Iterator[Finding]:
    """The words in a text that begins in line `first` of the file `place`."""
    plain = re.sub(r" *\n *", "\n", _CODE.sub(lambda match: re.sub(r"[^\n]", "`", match[0]), text))
    for pattern, write in _WORDS:
        for match in pattern.finditer(plain):
            line = first + plain.count("\n", 0, match.start())
            yield Finding(f"{place}:{line}", " ".join(match[0].split()), write)


def in_module(text: str, place: str) -> Iterator[Finding]:
    """The words in the docstrings and strings of a module, and the names that it defines."""
    nodes = list(ast.walk(ast.parse(text)))
    calls = [node for node in nodes if isinstance(node, ast.Call) and _KEPT.search(ast.unparse(node.func))]
    kept = {id(argument) for call in calls for argument in call.args}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in kept:
            yield from in_text(node.value if " " in node.value else "", place, node.lineno)
        name = getattr(node, "name", None) or getattr(node, "arg", None)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        if isinstance(name, str) and name in NAMES:
            yield Finding(f"{place}:{getattr(node, 'lineno', 0)}", name, NAMES[name])


def findings(root: Path = ROOT) -> list[Finding]:
    """All findings in the tree at `root`."""
    found: list[Finding] = []
    for pattern in TEXTS:
        for path in sorted(root.glob(pattern)):
            found += in_text(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix())
    for path in sorted(path for layer in LAYERS for path in (root / layer).rglob("*.py")):
        found += in_module(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix())
    return found


def main() -> int:
    """Print what was found; 1 where something was, else 0."""
    found = findings()
    for one in found:
        print(f"{one.place}: {one.word!r}: write {one.write}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
