"""Every word that the project does not use is found, and what stands in its place is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_words import NAMES, WORDS, Finding, findings, in_module, in_text

REFUSED = (
    "drawn by lot", "it goes on", "it goes on\n    with the next", "went on with it", "no difference is shown",
    "no difference can be told", "the trained team less its beginning", "the warm-started team", "the no-edge twin",
    "seeds that nothing was tuned on", "the interval holds 0", "A less the B", "final wealth, less 1", "mended",
    "to mend it", "not shown on windows", "to heed a warning", "a quiet machine", "made anew", "whoever asks",
    "whichever", "too dear", "how dear may trading become?", "a stranger's", "without a word", "so many steps",
    "it is spoken", "every engine speaks", "look-ups cost", "data of one's own", "is called otherwise now",
    "who is asked", "what is practised is what is asked", "thousandths of the outcome", "what the evidence allows",
    "the file says so", "the process is silent", "this is no adapter", "a line that is none.", "tokenised",
    "behaviour", "neighbouring", "the centre", "analysed", "to practise", "artefacts", "a sceptic", "labelled",
    "a judgement",
)  # fmt: skip
WRITTEN = (
    "drawn at random", "it continues", "it resumes", "not statistically significant", "no measurable difference",
    "the initial (SFT) team", "the no-edge control", "held-out seeds", "the interval includes 0", "A minus B",
    "A versus B", "fixed", "to fix it", "too small to detect in 24 windows", "to follow", "an idle machine", "again",
    "the user", "any", "expensive", "at what cost does the edge vanish?", "someone else's", "untrusted", "silently",
    "up to 8 steps", "used", "a conversation", "each lookup costs", "your own data", "was renamed to",
    "the roles it consults", "practice on full positions only", "basis points of return", "the outcome score (0 to 1)",
    "the achievable value", "the file contains it", "the process does not respond", "this is not an adapter",
    "there is no adapter", "None", "it is no longer there", "there are none.", "less than 5 %",
    "how much less the loss is", "`is no adapter`", "tokenized", "noise", "precise", "otherwise", "behavior",
    "what speaks for it", "https://whoever.example",
)  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_a_word_that_is_not_used_is_found(text: str) -> None:
    assert {found.place for found in in_text(f"One.\n{text}", "page.md")} == {"page.md:2"}


@pytest.mark.parametrize("text", WRITTEN)
def test_what_is_written_in_its_place_is_not_found(text: str) -> None:
    assert list(in_text(text, "page.md")) == []


def test_each_rule_has_an_example() -> None:
    assert {found.write for text in REFUSED for found in in_text(text, "")} == set(WORDS.values())


def test_of_a_module_strings_docstrings_and_names_are_read() -> None:
    source = (
        '"""Made anew."""\n# by lot\nclass Judge:\n    def told(self, begun_at):\n        x = f"{self} is no arm"\n'
    )
    source += 'y = derive_seed(1, "so many"), Tool("a", "made anew")\nkey = "anew"\n'
    assert [found.place for found in in_module(source, "m.py")] == ["m.py:3", "m.py:1", "m.py:4", "m.py:4", "m.py:5"]
    assert all(list(in_module(f"{name} = 1", "m.py")) == [Finding("m.py:1", name, NAMES[name])] for name in NAMES)


def test_a_tree_is_read_whole(tmp_path: Path) -> None:
    for name in ("README.md", "docs/start/page.md", "configs/one.toml", "backend/a/b.py", "tests/test_x.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('"""Made anew."""\n')
    places = [found.place for found in findings(tmp_path)]
    assert places == ["README.md:1", "docs/start/page.md:1", "configs/one.toml:1", "backend/a/b.py:1"]


def test_pages_and_product_use_the_words_of_the_field() -> None:
    assert findings() == []
