"""What `data check` notes of bars that cannot be what they say: a table of faults, and none in sound bars."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from backend.cli.data import data_app
from simulator.arrays import FloatArray, IntArray
from simulator.data.catalog import Catalog
from simulator.market.bar_checks import Issue, check_bars, unusual_bars
from simulator.market.timeframes import format_time
from simulator.tables import timestamp_array, write_table

HOUR, START, BARS, AT = 3_600_000, 1_704_067_200_000, 240, 120
Columns = dict[str, FloatArray]
PRICES = ("open", "high", "low", "close")


def bars(seed: int = 0, count: int = BARS, price: float = 100.0) -> tuple[IntArray, Columns]:
    """Hourly bars that move by about half a percent each."""
    rng = np.random.default_rng(seed)
    close = price * np.exp(np.cumsum(rng.normal(0, 0.005, count)))
    open_ = np.concatenate([[price], close[:-1]])
    spread = 1 + np.abs(rng.normal(0, 0.003, (2, count)))
    columns = {"open": open_, "high": np.maximum(open_, close) * spread[0], "low": np.minimum(open_, close) / spread[1]}
    volume = rng.lognormal(3, 0.5, count)
    return START + HOUR * np.arange(count, dtype=np.int64), {**columns, "close": close, "volume": volume}


def found(time: IntArray, columns: Columns) -> dict[str, Issue]:
    sound = check_bars("BTC", HOUR, time, columns)
    assert not any(issue.fatal for issue in sound)
    return {issue.kind: issue for issue in [*sound, *unusual_bars("BTC", HOUR, time, columns)]}


def scaled(columns: Columns, since: int, factor: float, names: tuple[str, ...] = PRICES) -> Columns:
    return {name: np.where((np.arange(len(values)) >= since) & (name in names), values * factor, values)
            for name, values in columns.items()}  # fmt: skip


def without(time: IntArray, columns: Columns, first: int, stop: int) -> tuple[IntArray, Columns]:
    kept = np.r_[0:first, stop : len(time)]
    return time[kept], {name: values[kept] for name, values in columns.items()}


def one_cell(columns: Columns, name: str, factor: float) -> Columns:
    """A decimal shift of one close, with the high or low that goes with it."""
    changed = {key: values.copy() for key, values in columns.items()}
    changed[name][AT] *= factor
    changed["high"][AT] = max(changed[one][AT] for one in PRICES)
    changed["low"][AT] = min(changed[one][AT] for one in PRICES)
    return changed


Case = Callable[[IntArray, Columns], tuple[IntArray, Columns]]
CASES: dict[str, tuple[Case, set[str]]] = {
    "tenfold across a gap": (lambda t, c: without(t, scaled(c, AT, 10.0), AT - 5, AT), {"gap", "gap_jump"}),
    "a tenth across a long gap": (lambda t, c: without(t, scaled(c, AT, 0.1), 20, AT), {"gap", "gap_jump"}),
    "a tenth more across a bar": (lambda t, c: without(t, scaled(c, AT, 1.1), AT - 1, AT), {"gap", "gap_jump"}),
    "a thousandfold unit": (lambda t, c: (t, scaled(c, AT, 1000.0)), {"jump"}),
    "satoshi": (lambda t, c: (t, scaled(c, AT, 1e-8)), {"jump"}),
    "decimal shift of a close": (lambda t, c: (t, one_cell(c, "close", 10.0)), {"scale", "jump"}),
    "decimal shift of an open": (lambda t, c: (t, one_cell(c, "open", 0.1)), {"scale", "jump"}),
    "decimal shift of a high": (lambda t, c: (t, one_cell(c, "high", 10.0)), {"flash_wick"}),
    "decimal shift of a low": (lambda t, c: (t, one_cell(c, "low", 0.1)), {"flash_wick"}),
    "volume in quote currency": (lambda t, c: (t, scaled(c, AT, 300.0, ("volume",))), {"volume_scale"}),
    "volume in contracts": (lambda t, c: (t, scaled(c, AT, 0.001, ("volume",))), {"volume_scale"}),
    "no volume for a day": (lambda t, c: (t, c | {"volume": c["volume"] * (np.abs(np.arange(BARS) - AT) >= 12)}),
                            {"zero_volume"}),
    "another coin from here on": (lambda t, c: (t, {n: np.concatenate([v[:AT], bars(9, price=3.0)[1][n][AT:]])
                                                    for n, v in c.items()}), {"jump"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_noted_at_its_place(name: str) -> None:
    change, kinds = CASES[name]
    time, columns = change(*bars())
    issues = found(time, columns)
    assert set(issues) == kinds, issues
    place = format_time(START + HOUR * (AT - 11 if name == "no volume for a day" else AT))
    assert any(place in issue.detail for issue in issues.values()), issues
    if name == "no volume for a day":
        assert "up to 23 in a row" in issues["zero_volume"].detail


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), holes=st.lists(st.tuples(st.integers(1, 200), st.integers(1, 30)), max_size=3))
def test_sound_bars_with_gaps_have_no_note_but_the_gaps(seed: int, holes: list[tuple[int, int]]) -> None:
    time, columns = bars(seed)
    kept = np.ones(BARS, np.bool_)
    for first, count in holes:
        kept[first : first + count] = False
    kept[[0, -1]] = True
    issues = found(time[kept], {name: values[kept] for name, values in columns.items()})
    assert set(issues) <= {"gap"}


@pytest.mark.parametrize("count", [2, 5, 8])
def test_a_jump_to_another_scale_is_noted_in_the_shortest_file(count: int) -> None:
    time, columns = bars(count=count)
    assert set(found(time, scaled(columns, count - 1, 10.0))) == {"jump"}


def test_two_symbols_with_the_same_bars_are_noted(tmp_path: Path) -> None:
    for symbol, seed in (("AAAUSDT", 1), ("BBBUSDT", 1), ("CCCUSDT", 2)):
        time, columns = bars(seed)
        write_table(tmp_path / f"{symbol}-1h.parquet", {"timestamp": timestamp_array(time), **columns})
    [issue] = [issue for issue in Catalog(tmp_path).check() if issue.kind == "same_bars"]
    assert "BBBUSDT" in issue.file and "AAAUSDT-1h.parquet" in issue.detail
    said = CliRunner().invoke(data_app, ["check", str(tmp_path)])
    assert said.exit_code == 0 and "one of the two is of another symbol" in " ".join(said.output.split())
