"""The log of a process of a run: every line is JSON and says where it comes from, also the last one."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.distributed.heartbeat import Heartbeat
from backend.distributed.logs import PLACE, Ended, JsonLines, Place, json_lines, last_message, logged
from backend.store.records import RunRecord
from backend.store.store import Store
from simulator.errors import RunFailed, UserError

KEYS = {"time", "level", "run", "service", "role", "step", "logger", "message"}


@pytest.fixture(autouse=True)
def _place() -> Iterator[None]:
    yield
    vars(PLACE).update(asdict(Place()))  # the place of a process outlives its log


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_has_time_level_run_service_role_and_step(capsys: pytest.CaptureFixture[str]) -> None:
    with Store.open("mem://") as store:
        store.add_run(RunRecord("r", "train", 1, "hash", 1, {}))
        with (
            json_lines(Place("r", "trainer-trader", "trader")),
            Heartbeat(store, "r", "trainer-trader", "t") as heartbeat,
        ):
            heartbeat.report("working", 7, "on something")
            logging.getLogger("another.library").warning("careful")
            logging.getLogger("another.library").info("too much detail")
    told = lines(capsys)
    assert all(line.keys() == KEYS for line in told)
    assert {(line["run"], line["service"], line["role"]) for line in told} == {("r", "trainer-trader", "trader")}
    assert [(line["level"], line["step"], line["message"]) for line in told[1:]] == [
        ("info", 7, "working: on something"), ("warning", 7, "careful"), ("info", 7, "stopped")
    ]  # fmt: skip
    age = datetime.now(UTC) - datetime.fromisoformat(told[0]["time"])
    assert 0 <= age.total_seconds() < 600


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (UserError("mend this"), 2, "mend this"),
        (RunFailed("it cannot go on"), 1, "it cannot go on"),
        (OSError(errno.ENOSPC, "No space left on device", "there/file"), 1, "there/file cannot be written: No space"),
        (KeyboardInterrupt(), 130, "stopped by a signal"),
        (ZeroDivisionError("a defect"), 1, "a defect: ZeroDivisionError"),
    ],
)
def test_the_last_line_says_why_it_ends(
    error: BaseException, code: int, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with pytest.raises(Ended) as ended, logged(Place("r", "rollout-0")):
        raise error
    assert ended.value.code == code
    (tmp_path / "log").write_text(capsys.readouterr().err)
    assert words in last_message(tmp_path / "log") and str(tmp_path / "log") in last_message(tmp_path / "log")
    (line,) = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert ("traceback" in line) == isinstance(error, ZeroDivisionError)


def test_last_message_of_a_log_that_is_torn_or_missing(tmp_path: Path) -> None:
    assert last_message(tmp_path / "none").startswith("it logged nothing")
    (tmp_path / "torn").write_text('{"message": "a"}\n{"mess')
    assert last_message(tmp_path / "torn").startswith('{"mess')


@given(st.text())
def test_whatever_is_logged_is_one_line(text: str) -> None:
    record = logging.LogRecord("l", logging.INFO, "", 0, "%s", (text,), None)
    line = JsonLines().format(record)
    assert line.isascii() and len(line.splitlines()) == 1 and json.loads(line)["message"] == text
