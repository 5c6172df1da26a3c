"""What is harmful in a document is refused before it does harm, and files are whole or as they were."""

from __future__ import annotations

import errno
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator import tables
from simulator.documents import MOST_DEPTH, depth_of, lines_of, parse_json, read_bytes, read_document
from simulator.errors import DataError, UserError
from simulator.files import write_whole
from simulator.folders import check_links, path_inside
from simulator.tables import read_table

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_json_is_read_as_it_was_written(value: object) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value).encode()) == value


@given(VALUES | st.sampled_from(["\ud800", {"a": "\udfff[[{"}, '"\\"[', 10**299, -0.0, 5e-324, 1.7976931348623157e308]))
def test_a_long_document_is_read_to_the_bit_as_the_standard_reader_does(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False, indent=1)):
        read = parse_json(text + " " * 17_000)
        assert repr(read) == repr(json.loads(text)) and depth_of(read) == depth_of(value)


@given(st.integers(MOST_DEPTH - 3, MOST_DEPTH + 3), st.booleans())
def test_a_long_document_may_be_as_deep_as_a_short_one(depth: int, words: bool) -> None:
    text = '{"]}":[' * (depth // 2) + "[" * (depth % 2) + ('"[[{{"' if words else "") + "]" * (depth % 2)
    text += "]}" * (depth // 2) + " " * 17_000
    if depth > MOST_DEPTH + 1:  # the reader of long documents accepts an empty list at the end of the deepest way
        with pytest.raises(ValueError, match="nested deeper"):
            parse_json(text)
    elif depth <= MOST_DEPTH:
        assert depth_of(parse_json(text)) == depth


@given(st.text() | st.binary(max_size=200))
def test_whatever_is_no_json_is_a_value_error(text: str | bytes) -> None:
    try:
        parse_json(text)
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("NaN", "not a number"), ("[-Infinity]", "not a number"), ("1e999", "beyond all numbers"), ("-1e999", "beyond"),
        ("9" * 250 + "e99", "beyond"), ("[1e400]", "beyond"),
        ('["' + "x" * 99 + '",1E+0400]', "beyond"), ("[1," + "1" * 301 + "]", "digits"),
        ("9" * 5000, "5,000 digits"), ("[" * 100_000, "nested deeper"), ('{"a":' * 3000, "nested deeper"),
        ("[" * (MOST_DEPTH + 2) + "]" * (MOST_DEPTH + 2), "nested deeper"), (b'"\xff"', "decode"), ("", "Expecting"),
    ],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_what_is_harmful_is_refused_with_a_reason(text: str | bytes, why: str) -> None:
    for length in (0, 17_000):
        with pytest.raises(ValueError, match=why):
            parse_json(text.ljust(length))


def test_the_depth_of_a_document_is_counted() -> None:
    assert [depth_of(value) for value in (1, [], [1, {"a": [2]}], "[[")] == [0, 1, 3, 0]
    assert parse_json("[" * MOST_DEPTH + "]" * MOST_DEPTH)


def test_a_file_or_a_line_that_is_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[1, 2, 3]")
    assert read_document(tmp_path / "x.json", 9) == [1, 2, 3]
    with pytest.raises(ValueError, match="longer than 8 bytes"):
        read_bytes(tmp_path / "x.json", 8)
    assert list(lines_of(io.BytesIO(b"abc\nde"), 4)) == [b"abc\n", b"de"]
    with pytest.raises(ValueError, match="longer than 3 bytes"):
        list(lines_of(io.BytesIO(b"ab\nabcdef\n"), 3))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "out", "out/file", "a\0b", "circle"])
def test_a_name_that_leads_out_of_a_folder_is_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "out").symlink_to(tmp_path)
    (folder / "circle").symlink_to(folder / "circle")
    with pytest.raises(UserError, match=r"it says names .* does not lie in"):
        path_inside(folder, name, "it says")


def test_names_and_links_that_stay_inside_are_taken(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "link").symlink_to(tmp_path / "a" / "b")
    check_links(tmp_path / "a")
    for name in ("b", "b/../b", "link", "not there yet", "."):
        assert path_inside(tmp_path / "a", name, "it") == tmp_path / "a" / name
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path)
    with pytest.raises(UserError, match="up is a link out of"):
        check_links(tmp_path / "a")
    check_links(tmp_path / "a", within=tmp_path)


def test_a_table_that_says_that_it_is_huge_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": [1] * 1000}), path)
    assert read_table(path, ("a",)).num_rows == 1000
    monkeypatch.setattr(tables, "_MOST_VALUES", 999)
    with pytest.raises(DataError, match="1,000 rows of 1 columns"):
        read_table(path, ("a",))


ROOT = Path(__file__).parents[2]
# Writes long texts of one letter, each at once, until it is killed.
WRITER = """
import itertools, sys
from pathlib import Path
from simulator.files import write_whole
for letter in itertools.cycle("abcdefgh"):
    write_whole(Path(sys.argv[1]), letter * 300_000)
    print(letter, flush=True)
"""


def test_a_killed_writer_leaves_one_whole_text(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    for turns in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITER, path], cwd=ROOT, stdout=subprocess.PIPE)
        assert process.stdout is not None
        for _ in range(1 + turns):
            process.stdout.readline()
        process.kill()
        process.communicate()
        text = path.read_text()
        assert len(text) == 300_000 and len({*text}) == 1


def test_a_full_disk_leaves_the_former_text_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "report.html"
    write_whole(path, "former")
    real = Path.write_text

    def no_room(self: Path, text: str, encoding: str | None = None) -> int:
        real(self, text[: len(text) // 2], encoding)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", no_room)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, "new")
    assert path.read_text() == "former"
    assert [one.name for one in tmp_path.iterdir()] == ["report.html"]


def test_an_interrupt_leaves_the_former_text_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "team.json"
    write_whole(path, "former")

    def interrupted(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new")
    assert [one.name for one in tmp_path.iterdir()] == ["team.json"]
    assert path.read_text() == "former"
