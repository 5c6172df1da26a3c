"""The folder of a cassette: who may write, what a full disk costs, and what is damaged."""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from cryptosentinel.llm.cassette.engine import Cassette
from cryptosentinel.llm.cassette.files import CALLS, HEADER, TOKENIZER
from cryptosentinel.llm.chat_codec import ChatCodec, make_byte_codec
from simulator.errors import RunFailed, UserError
from tests.cassette_scenes import (
    SETTINGS,
    Oracle,
    StreamingOracle,
    record_three,
    recording,
    request,
    same,
    start,
)
from tests.team_scenes import codec


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    return record_three(tmp_path / "recorded")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"settings": SETTINGS | {"horizon_bars": 6}}, r"another settings \(horizon_bars 12, not 6\)"),
        ({"settings": {}}, "another settings"),
        ({"roles": ("manager",)}, r"another versions \(trader 'trader-v1', not None\)"),
        ({"codec": make_byte_codec(empty_think=True)}, r"another empty_think \(False, not True\)"),
        ({"tokenizer": True}, "another tokenizer"),
        ({"version": "v2"}, r"another versions \(manager 'manager-v1', not 'v2'\)"),
        ({"name": "another"}, r"another engine \('oracle', not 'another'\)"),
    ],
)
def test_a_recording_goes_on_with_the_same_team_only(
    tmp_path: Path, changes: dict[str, Any], words: str, tokenizer: PreTrainedTokenizerFast
) -> None:
    folder = tmp_path / "c"
    with recording(Oracle(), folder) as recorder:
        recorder.generate([request()])
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    engine = Oracle()
    engine.name = changes.pop("name", engine.name)
    engine.versions["manager"] = changes.pop("version", engine.versions["manager"])
    if changes.get("tokenizer"):
        changes = {"tokenizer": tokenizer, "codec": ChatCodec(tokenizer)}
    with pytest.raises(UserError, match=words):
        start(engine, folder, **changes)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    start(Oracle(), folder).close()  # nothing holds it


def test_a_cassette_brings_its_tokenizer(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    spoken = ChatCodec(tokenizer, empty_think=True)
    folder = tmp_path / "c"
    for _ in range(2):  # the second time it goes on
        with recording(Oracle(), folder, codec=spoken, tokenizer=tokenizer) as recorder:
            recorder.generate([request()])
    read = Cassette(folder).codec
    assert read.start("You are.", "1.25 <|im_end|> ü") == spoken.start("You are.", "1.25 <|im_end|> ü")
    assert read.empty_think and (read.vocab_size, read.special_ids) == (spoken.vocab_size, spoken.special_ids)
    (folder / TOKENIZER).write_text((folder / TOKENIZER).read_text() + " ")
    with pytest.raises(UserError, match="another tokenizer"):
        start(Oracle(), folder, codec=spoken, tokenizer=tokenizer)
    for damage in ("{", ""):
        (folder / TOKENIZER).write_text(damage)
        with pytest.raises(UserError, match=r"tokenizer\.json cannot be read"):
            Cassette(folder)


def test_one_recorder_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    with recording(Oracle(), folder) as recorder:
        recorder.generate([request()])
        with pytest.raises(UserError, match="is being recorded by another program"):
            start(Oracle(), folder)
        assert len(Cassette(folder).generate([request()])) == 1  # playing disturbs nobody
        recorder.generate([request(1)])
    start(Oracle(), folder).close()
    recorder.close()


def test_another_program_is_refused_until_it_ends_however_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    reading, writing = os.pipe()
    other = os.fork()
    if other == 0:
        recorder = start(Oracle(), folder)
        recorder.generate([request(0), request(1)])
        os.write(writing, b".")
        signal.pause()
    try:
        assert os.read(reading, 1) == b"."
        with pytest.raises(UserError, match="is being recorded by another program"):
            start(Oracle(), folder)
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
        os.close(reading)
        os.close(writing)
    engine = Oracle()
    with recording(engine, folder) as recorder:
        recorder.generate([request(number) for number in range(3)])
    assert engine.asked == [request(2)]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """The disk is full: no file grows beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("more", [0, 1, 50])
@pytest.mark.parametrize("streams", [False, True])
def test_a_full_disk_costs_nothing_that_was_stored(tmp_path: Path, more: int, streams: bool) -> None:
    folder = tmp_path / "c"
    engine = StreamingOracle() if streams else Oracle()
    with recording(engine, folder) as recorder:
        heard = recorder.generate([request(0)])
        before = (folder / CALLS).read_bytes()
        with files_of_at_most(len(before) + more), pytest.raises(RunFailed, match=r"free some space and run again"):
            recorder.generate([request(1)])
        assert (folder / CALLS).read_bytes() == before
        heard += recorder.generate([request(1)])  # there is room again
    assert same(Cassette(folder).generate([request(0), request(1)]), heard)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=r"is a file|cannot use this folder"):
            start(Oracle(), folder)
    with files_of_at_most(20), pytest.raises(UserError, match="cannot be written"):
        start(Oracle(), tmp_path / "full")
    start(Oracle(), tmp_path / "full").close()  # what was left there is no obstacle


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match=r"is not empty and holds no cassette\.json"):
        start(Oracle(), tmp_path)
    with pytest.raises(UserError, match=r"no cassette in .*: give a folder that holds cassette\.json"):
        Cassette(tmp_path)
    with pytest.raises(UserError, match="no cassette in"):
        Cassette(tmp_path / "nowhere")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "is of format None"),
        ('{"format": 2}', "is of format 2, this version reads 1"),
        ('{"format": 1}', "is damaged"),
        (
            '{"format": 1, "engine": 5, "versions": {}, "tokenizer": "byte", "empty_think": false, "settings": {}}',
            "is damaged",
        ),
    ],
)
def test_a_header_that_cannot_be_used(recorded: Path, header: str, words: str) -> None:
    (recorded / HEADER).write_text(header)
    for attempt in (Cassette, lambda folder: start(Oracle(), folder)):
        with pytest.raises(UserError, match=words):
            attempt(recorded)


@pytest.mark.parametrize(
    "change",
    [
        {"ids": None},
        {"ids": [1.0]},
        {"ids": [True], "logps": [0.0]},
        {"ids": [codec().vocab_size], "logps": [0.0]},
        {"ids": [-1], "logps": [0.0]},
        {"ids": [1], "logps": []},
        {"logps": ["0"]},
        {"finished": 1},
        {"usage": {}, "more": 1},
        {"usage": None},
        {"usage": {"promt": 1}},
        {"usage": {"prompt": "1"}},
        {"role": None},
        {"seed": None},
        {"seed": 1.5},
        {"temperature": 0.0},
        {"temperature": "1"},
        {"max_tokens": None},
        {"constrained": 0},
        {"prompt": ["x"]},
        "",
        "{",
        "[]",
        "null",
        "[" * 5000,
        '{"role": "manager"}',
    ],
)
def test_a_damaged_line_is_named(recorded: Path, change: dict[str, Any] | str) -> None:
    lines = (recorded / CALLS).read_text().splitlines()
    lines[1] = change if isinstance(change, str) else json.dumps(json.loads(lines[1]) | change)
    (recorded / CALLS).write_text("\n".join(lines) + "\n")
    for attempt in (Cassette, lambda folder: start(Oracle(), folder)):
        with pytest.raises(UserError, match=r"calls\.jsonl, line 2 is damaged") as caught:
            attempt(recorded)
        assert len(str(caught.value)) < 500 + len(str(recorded))
    (recorded / CALLS).write_text("\n".join([lines[0], lines[2]]) + "\n")  # as the message says
    with recording(engine := Oracle(), recorded) as recorder:
        recorder.generate([request(number, seed=10 + number) for number in range(3)])
    assert len(engine.asked) == 1


@pytest.mark.parametrize("change", [{"ids": [5], "logps": [0.0]}, {"finished": None}, {"usage": {"seconds": 77.5}}])
def test_a_call_with_two_answers_is_refused(recorded: Path, change: dict[str, Any]) -> None:
    line = (recorded / CALLS).read_text().splitlines()[0]
    (recorded / CALLS).write_text((recorded / CALLS).read_text() + line + "\n")
    assert Cassette(recorded).generate([request(0, seed=10)])  # twice the same is harmless
    value = json.loads(line)
    value |= {"finished": not value["finished"]} if change == {"finished": None} else change
    (recorded / CALLS).write_text((recorded / CALLS).read_text() + json.dumps(value) + "\n")
    with pytest.raises(UserError, match="line 5: this call stands there before, with another answer"):
        Cassette(recorded)
