"""Reading answers: the same values as the SDK reads, of every message. Writing: the same bytes as the SDK writes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from surrealdb import RecordID, Table
from surrealdb.data import cbor
from surrealdb.data.types.null import Null

from backend.store.gateway import answers, cbor_writer

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.floats(width=32, allow_nan=False)
PLAIN = st.none() | st.just(Null) | st.booleans() | NUMBERS | st.text() | st.binary() | st.decimals(allow_nan=False)
KEYS = st.builds(RecordID, st.sampled_from(["run", "reward"]), st.lists(st.integers(0, 9), min_size=1))
TREES: st.SearchStrategy[Any] = st.recursive(
    PLAIN | KEYS | st.builds(Table, st.just("run")),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=40), inner, max_size=30),
    max_leaves=60,
)


def read(decode: Any, message: bytes) -> tuple[str, str]:
    """The value in words, which tell 1 from 1.0 and from True, or the kind of error."""
    try:
        return "value", repr(decode(message))
    except Exception as error:  # noqa: BLE001 - whatever the SDK raises
        return "error", type(error).__name__


@given(TREES)
def test_every_value_is_the_one_that_the_sdk_reads(value: Any) -> None:
    message = bytes(cbor.encode(value))
    assert read(answers.decoded_answer, message) == read(cbor.decode, message)
    assert read(answers.decoded_answer, message)[0] == "value"


@given(TREES, st.data())
def test_of_a_damaged_message_nothing_else_is_read(value: Any, data: st.DataObject) -> None:
    """A byte changed, or the end cut off: the same value or the same error."""
    message = bytearray(cbor.encode(value))
    at = data.draw(st.integers(0, len(message) - 1))
    if data.draw(st.booleans()):
        del message[at:]
    else:
        message[at] = data.draw(st.integers(0, 255))
    assert read(answers.decoded_answer, bytes(message)) == read(cbor.decode, bytes(message))


def test_what_the_engine_writes_is_read_without_the_sdk(monkeypatch: Any) -> None:
    """Else nothing would be gained by it."""
    row = {"id": RecordID("run", ["a", 1]), "sum": -1.5, "flag": True, "none": None, "ids": b"\1", "rows": [1, 300]}
    message = bytes(cbor.encode(row)) + b"\xf9\x3e\x00"
    monkeypatch.setattr(cbor, "decode", None)
    assert answers.decoded_answer(message) == row
    assert answers.decoded_answer(b"\xf9\x3e\x00") == 1.5


@given(
    TREES | st.integers() | st.just((1, (2.0, None))) | st.sampled_from([float("nan"), float("inf"), "\ud800", {1: 2}])
)
def test_what_is_written_are_the_bytes_of_the_sdk(value: Any) -> None:
    assert read(cbor_writer.encoded, value) == read(lambda tree: bytes(cbor.encode(tree)), value)


def test_requests_and_rows_are_written_without_the_sdk(monkeypatch: Any) -> None:
    """Else nothing would be gained by it."""
    row = {"id": RecordID("run", ["a", 1]), "sum": -1.5, "flag": True, "none": None, "ids": b"\1", "long": "x" * 300}
    request = {
        "id": "7",
        "method": "query",
        "params": ["RETURN 1", {"rows": [row, {"n": -(2**63)}], "pair": (1, 70_000)}],
    }
    expected = bytes(cbor.encode(request))
    monkeypatch.setattr(cbor, "encode", None)
    assert cbor_writer.encoded(request) == expected
