"""What a newcomer types first: files in place of folders are imported, and each mistake gets one sentence that says
what is wrong, where, and what to do."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest

from simulator.data.archive import write_bars
from simulator.errors import UserError
from simulator.market.timeframes import interval_of
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.command_line import Run, program
from ui.server import check_port

STRATEGIES = """
class A:
    name = "a"

    def decide(self, view, account):
        return {decision}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    market = generate(SyntheticConfig(bars=300, seed=1, symbols=("AAAUSDT", "BBBUSDT"), timeframe="1d"))
    write_bars(market, tmp_path / "bars/venue")
    for name, decision in (("buy", "'buy'"), ("listed", "['buy']"), ("nothing", "[]")):
        (tmp_path / f"{name}.py").write_text(STRATEGIES.format(decision=decision))
    (tmp_path / "broken.py").write_text("class A(:\n")
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "empty.csv").write_text("time,open,high,low,close,volume\n")
    return program(tmp_path, monkeypatch, capsys)


def csv(path: Path, timeframe: str = "1h", bars: int = 400, start: int = 1_704_067_200) -> None:
    """Bars of a falling price."""
    path.parent.mkdir(parents=True, exist_ok=True)
    time = start + interval_of(timeframe) // 1000 * np.arange(bars)
    rows = [f"{at},{p},{p + 1},{p - 1},{p},1000" for at, p in zip(time, 1_000.0 - np.arange(bars), strict=True)]
    path.write_text("\n".join(["time,open,high,low,close,volume", *rows, ""]))


MISTAKES = {
    "--team buy.py:A": "buy:A: decide returned 'buy' at 2020-0",
    "--team ./buy.py": "buy.py is a file; name its strategy as a module: buy:A",
    "--team nowhere.py:A": "nowhere.py: there is no such file; name your own strategy as module:Class",
    "--team broken.py": "broken.py: is not valid Python",
    "--team empty.py": "empty.py: has no class with a method decide(self, view, account); add one",
    "--team buy:A": "buy:A: decide returned 'buy' at 2020-0",
    "--team listed:A": "listed:A: decide returned 'buy' at 2020-0",
    "--team hold,flatt": "no team 'flatt' (did you mean 'flat'?)",
    "--team hold --start 2031-01-01": "the start 2031-01-01 lies after the data: there are bars from 2020-01-01 00:00",
    "--team hold --end 2011-01-01": "the end 2011-01-01 lies before the data: there are bars from 2020-01-01 00:00",
    "--team hold --start 2020-06-02 --end 2020-06-01": "is not before the end 2020-06-01",
    "--team hold --symbols aaausdt": "no symbol 'aaausdt'; write it as AAAUSDT",
    "--team hold -s costs.taker_fee=0.1%": "write it as a fraction, costs.taker_fee=0.001",
    "--team hold -s costs.taker_fee=5%": "write it as a fraction, costs.taker_fee=0.05",
    "--team hold --timeframe 1h": "has no bars of 1h; it has 1d",
    "--team hold --data empty.csv": "empty.csv: holds no row. `cryptosentinel data import empty.csv --out data`",
    "--team hold -s market.data=empty.csv": "empty.csv: is a file, and a folder of bars is needed; make one of it with",
}


@pytest.mark.parametrize("given", MISTAKES)
def test_a_mistake_gets_one_sentence_that_says_what_to_do(given: str, run: Run) -> None:
    data = () if "data" in given else ("--data", "bars")
    result = run("backtest", *data, *given.split())
    assert result.code == 2 and MISTAKES[given] in result.err, (result.code, result.out, result.err)
    assert "Traceback" not in result.err and "error:" in result.err


def test_the_only_venue_and_timeframe_are_taken_without_asking(run: Run) -> None:
    result = run("backtest", "--data", "bars", "--team", "nothing:A")
    assert result.code == 0 and "bars/venue: AAAUSDT, BBBUSDT, 1d bars" in result.out, result.err
    assert "BBBUSDT" in run("data", "list", "bars").out


def test_of_several_venues_one_must_be_named_and_nothing_is_imported(run: Run, tmp_path: Path) -> None:
    write_bars(generate(SyntheticConfig(bars=200, seed=1, symbols=("AAAUSDT",))), tmp_path / "bars/other")
    (tmp_path / "bars/notes.txt").write_text("a,b\n1,2\n")
    result = run("backtest", "--data", "bars", "--team", "hold")
    assert result.code == 2 and "did you mean its folder other or venue" in result.err
    assert not (tmp_path / "runs").exists()


def test_a_file_and_a_folder_of_files_are_imported_into_a_cache_which_is_said(run: Run, tmp_path: Path) -> None:
    csv(tmp_path / "BTCUSDT_data.csv", "1d")
    csv(tmp_path / "mine/ETHUSDT.csv")
    csv(tmp_path / "mine/BTCUSDT-1h.csv")
    for name, traded in (("BTCUSDT_data.csv", "BTCUSDT, 1d bars"), ("mine", "BTCUSDT, ETHUSDT, 4h bars")):
        for said in ("was imported into runs/data/", "was imported before, into runs/data/"):
            result = run("backtest", "--data", name, "--team", "hold")
            assert result.code == 0 and f"{name} {said}" in result.out and traded in result.out, result.err
    csv(tmp_path / "mine/BTCUSDT-1h.csv", bars=300)
    assert "was imported into" in run("backtest", "--data", "mine", "--team", "hold").out, "its content is another"
    (tmp_path / "mine/ADAUSDT.csv").write_text("time,open,high,low,close,volume\n1704067200,1,1,1,1,x\n")
    refused = run("backtest", "--data", "mine", "--team", "hold")
    assert refused.code == 2 and "ADAUSDT.csv: line 2: 'x' in volume is not a number" in refused.err


def test_an_import_ends_with_the_next_command_which_works(run: Run, tmp_path: Path) -> None:
    csv(tmp_path / "BTCUSDT.csv", "3d", start=1_703_980_800)
    done = run("data", "import", "BTCUSDT.csv", "--out", "my data")
    assert done.code == 0 and "next cryptosentinel backtest --team hold --data 'my data/" in done.out
    folder = done.out.partition("--data '")[2].partition("'")[0]
    assert "BTCUSDT, 3d bars" in run("backtest", "--team", "hold", "--data", folder).out


def test_a_port_in_use_is_said_before_anything_is_loaded() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=rf"port {port} .*another program uses it.*--port {port + 1}"):
            check_port("127.0.0.1", port)
    check_port("127.0.0.1", port)
