"""What cannot be traded on is refused in one sentence, before anything is recorded."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from backend.errors import message_and_code
from backend.runs.requests import Observer, RunStart
from backend.store.records import PAPER
from backend.store.store import Store
from simulator.errors import RunFailed, UserError
from tests.backend.paper import live_scenes as scene
from tests.live_scenes import MINUTE, START
from tests.mock_binance.faults import Faults

ALWAYS = ((START, START + 10_000 * MINUTE),)


class _Unannounced(Observer):
    """A session that does not begin is not announced either."""

    def started(self, start: RunStart) -> None:
        """See `Observer`."""
        raise AssertionError(f"{start.run} was announced")


def refused(tmp_path: Path, faults: Faults | None = None, passed: int = 0, **given: Any) -> tuple[str, int]:
    """The message and exit code of a session that does not begin."""
    with scene.playing(faults) as live, Store.open("mem://") as store:
        live.clock.passed(passed)
        with pytest.raises((UserError, RunFailed)) as caught:
            live.run(store, tmp_path, _Unannounced(), **given)
        assert not [record for record in store.runs() if record.kind == PAPER] and not list(tmp_path.iterdir())
        told = message_and_code(caught.value)
        assert told is not None and "\n" not in told[0]
        return told


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"exchange": "binanze"}, "'binanze' is not an exchange of ccxt; near: binance"),
        ({"symbols": ()}, "name what to trade with --symbols"),
        ({"timeframe": "8h", "overrides": ("market.resample=1d",)}, "market.resample = '1d' is of recorded data"),
        ({"start": "2023-01-01"}, "a session on an exchange begins now"),
        ({"end": "2023-01-01"}, "--end 2023-01-01 is over"),
        ({"team": "buy_and_hope"}, "buy_and_hope"),
    ],
)
def test_a_mistake_of_the_user_is_refused(tmp_path: Path, given: dict[str, Any], words: str) -> None:
    told, code = refused(tmp_path, **given)
    assert words in told and code == 2


def test_a_symbol_with_too_short_a_history_is_refused(tmp_path: Path) -> None:
    told, code = refused(tmp_path, passed=-80 * MINUTE)
    assert "candles of BTC/USDT in the last 130 times 1m, and the team looks back over 121" in told and code == 2


@pytest.mark.parametrize(
    ("faults", "given", "words"),
    [
        (Faults(maintenance=ALWAYS), {}, "binance cannot be reached"),
        (None, {"url": "http://no-such-host.invalid"}, "binance cannot be reached"),
        (None, {"timeframe": "5m"}, 'Invalid interval."}; choose another timeframe'),
    ],
)
def test_an_exchange_that_cannot_be_used_ends_the_command(
    tmp_path: Path, faults: Faults | None, given: dict[str, Any], words: str
) -> None:
    told, code = refused(tmp_path, faults, **given)
    assert words in told and code == 1


class _Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_a_disk_that_is_nearly_full_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: _Usage(10**9, 10**9 - 1000, 1000))
    told, code = refused(tmp_path)
    assert "only 0 MB are free" in told and "free some space" in told and code == 1
