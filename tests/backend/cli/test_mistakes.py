"""What a newcomer types first: files in place of folders are imported, and each mistake gets one message that says what
is wrong, where, and what to do, with exit code 2."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from backend.store.store import Store
from simulator.data.archive import write_bars
from simulator.errors import UserError
from simulator.market.timeframes import interval_of
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.command_line import Run, program
from tests.stored_runs import add_backtest_run
from ui.server import check_port

STRATEGIES = """
class A:
    name = "a"

    def decide(self, view, account):
        return {decision}


class Broken:
    def decide(self, view, account):
        return 1 / 0


def nothing():
    return object()
"""
HEADER = "time,open,high,low,close,volume\n"
FILES = {
    "buy.py": STRATEGIES.format(decision="'buy'"),
    "listed.py": STRATEGIES.format(decision="['buy']"),
    "nothing.py": STRATEGIES.format(decision="[]"),
    "broken.py": "class A(:\n",
    "needs.py": "import no_such_thing\n",
    "empty.py": "x = 1\n",
    "empty.csv": HEADER,
    "bad.toml": "[market\n",
    "typo.toml": "[training]\nsede = 1\n",
    "team/team.json": "{",
    "torn/AAAUSDT-4h.parquet": "",
    "nothing/notes": "",
}


def bars(count: int = 400) -> pd.DataFrame:
    """Sound 4h bars."""
    market = generate(SyntheticConfig(bars=count, seed=3, symbols=("AAAUSDT",)))
    columns = {name: getattr(market, name)[:, 0] for name in ("open", "high", "low", "close", "volume")}
    return pd.DataFrame({"timestamp": pd.to_datetime(market.open_time, unit="ms"), **columns})


TABLES = {
    "fine": bars(),
    "short": bars(100),
    "shortish": bars(150),
    "shorter": bars(300),
    "backwards": bars().iloc[::-1],
    "impossible": bars().assign(high=lambda table: table["high"].where(table.index != 7, table["low"] * 0.9)),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    market = generate(SyntheticConfig(bars=300, seed=1, symbols=("AAAUSDT", "BBBUSDT"), timeframe="1d"))
    write_bars(market, tmp_path / "bars/venue")
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for name, table in TABLES.items():
        (tmp_path / name).mkdir()
        table.to_parquet(tmp_path / name / "AAAUSDT-4h.parquet")
    return program(tmp_path, monkeypatch, capsys)


def csv(path: Path, timeframe: str = "1h", bars: int = 400, start: int = 1_704_067_200) -> None:
    """Bars of a falling price."""
    path.parent.mkdir(parents=True, exist_ok=True)
    time = start + interval_of(timeframe) // 1000 * np.arange(bars)
    rows = [f"{at},{p},{p + 1},{p - 1},{p},1000" for at, p in zip(time, 1_000.0 - np.arange(bars), strict=True)]
    path.write_text(HEADER + "\n".join([*rows, ""]))


# By the command: the trouble and the way out.
MISTAKES = {
    "backtest --data nowhere": "no such folder | 'sample' names the sample market",
    "backtest --data nothing": "holds no bars | named like BTCUSDT-1h.parquet",
    "backtest --data torn": "not a readable Parquet file | download it again",
    "backtest --data impossible": "1 bars are impossible",
    "backtest --data short": "window is too short | Choose other dates",
    "backtest --data empty.csv --team hold": "holds no row. `cryptosentinel data import empty.csv --out data`",
    "backtest -s market.data=empty.csv": "is a file, and a folder of bars is needed; make one of it with",
    "backtest --data fine --symbols XYZUSDT": "no symbol 'XYZUSDT' | there are AAAUSDT",
    "backtest --data fine --symbols aaausdt": "no symbol 'aaausdt'; write it as AAAUSDT",
    "backtest --data fine --symbols AAAUSDT,AAAUSDT": "asked for twice",
    "backtest --data bars --timeframe 1h": "has no bars of 1h; it has 1d",
    "backtest --data fine --start 31.1.2020": "is not a date | write it like 2023-01-31",
    "backtest --data bars --team hold --start 2031-01-01": "lies after the data: there are bars from 2020-01-01 00:00",
    "backtest --data bars --team hold --end 2011-01-01": "lies before the data: there are bars from 2020-01-01 00:00",
    "backtest --data bars --start 2020-06-02 --end 2020-06-01": "is not before the end 2020-06-01",
    "backtest --data fine -s market.funding_dir='x'": "no such folder of funding",
    "backtest --data fine -s costs.taker_fee=0.1%": "write it as a fraction, costs.taker_fee=0.001",
    "backtest --data fine -s venue.rulez=x": "unknown key 'venue.rulez' | 'rules'",
    "backtest --data fine --config demo -s costs.impact=1": "impact needs participation",
    "backtest --data fine --rules x.json": "x.json | there is no such file",
    "backtest --data fine --finer 5m": "no 5m bars of AAAUSDT | data list",
    "backtest --data fine --finer 4h": "is not finer than the 4h bars | venue.finer",
    "backtest --data fine --finer 7m": "venue.finer | one of '', '1m', '3m', '5m'",
    "backtest --data fine --baselines hold,holt": "no baseline 'holt' | did you mean 'hold'",
    "backtest --data fine --team hold,flatt": "no team 'flatt' (did you mean 'flat'?)",
    "backtest --data fine --team zz": "no team 'zz' | folder of a finished training",
    "backtest --data fine --team fine": "no team 'fine' | folder of a finished",
    "backtest --data fine --team team": "team.json cannot be used | finished training run",
    "backtest --data fine --team hold,hold": "named twice | name each once in --team",
    "backtest --data bars --team buy.py:A": "buy:A: decide returned 'buy' at 2020-0",
    "backtest --data bars --team listed:A": "listed:A: decide returned 'buy' at 2020-0",
    "backtest --data bars --team ./buy.py": "buy.py is a file; name its strategy as a module: buy:A",
    "backtest --data bars --team buy:Broken": "division by zero (buy.py",
    "backtest --data bars --team nowhere.py:A": "there is no such file; name your own strategy as module:Class",
    "backtest --data bars --team nowhere:A": "no module 'nowhere' | from the folder it is in",
    "backtest --data bars --team broken.py": "broken.py: is not valid Python",
    "backtest --data bars --team needs:A": "cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'",
    "backtest --data bars --team empty.py": "has no class with a method decide(self, view, account); add one",
    "backtest --data bars --team buy:": "write module:MyStrategy, like my_module:MyStrategy",
    "backtest --data bars --team buy:Absent": "no class or function 'Absent'; its classes with a method decide are A",
    "backtest --data bars --team buy:nothing": "makes a object without a method decide",
    "backtest --dta x": "No such option | --dta",
    "check lookahead --data fine": "nothing to check is named: give --team",
    "check lookahead --data fine --team hold --out absent/x.json": "give the path of a file in a folder that exists",
    "check lookahead --data fine --team hold -s venue.finer=5m": "no 5m bars | data list",
    "train --data shortish": "too short to train on | use more bars",
    "train --data fine -s venue.rules=x.json": "x.json | there is no such file",
    "train -s training.base_model=x -s market.bars=400": "no model folder",
    "train --resume ../../x": "../../x | runs",
    "train --resume backtest-1": "not a training run | cryptosentinel runs",
    "evaluate scripted -c quick --data shorter": "held-out part has | use fewer",
    "config --config dema": "no preset 'dema' | did you mean 'demo'",
    "config --config bad.toml": "not valid TOML | bad.toml",
    "config --config typo.toml": "unknown key 'training.sede' | did you mean 'seed'",
    "demo --config quick -s market.data=fine": "makes its own market | train",
    "demo --config quick -s venue.finer=1m": "needs recorded bars | finer",
    "runs train-2001": "train-2001 | runs",
    "runs --store http://x": "http://x | give a folder",
    "data sample --out .": "not of a written market | empty folder",
    "data check backwards": "1 findings make the data unusable | fix",
    "data import nowhere --out o": "there is no such folder or file | name a folder of recorded",
    "data import bars --out bars/o": "lies in the tree | outside",
    "data download --symbols , --start 2024-01-01 --out o": "no symbol | at least one",
    "data download --symbols A/B --start 2024-01-01 --out o --market future": "market is 'future' | 'spot' or 'swap'",
    "data download --symbols A/B --start 2024-01-02 --end 2024-01-01 --out o": "is not after the start | 2024-01-02",
    "trian": "No such command | trian",
}


@pytest.mark.parametrize("given", MISTAKES)
def test_a_mistake_gets_one_message_that_says_what_to_do(given: str, run: Run, tmp_path: Path) -> None:
    if "backtest-1" in given:
        with Store.open(tmp_path / "runs" / "store") as store:
            add_backtest_run(store, "backtest-1")
    (tmp_path / "synthetic").mkdir()
    (tmp_path / "synthetic" / "AAAUSDT-4h.parquet").write_text("")
    result = run(*shlex.split(given))
    assert result.code == 2, result.out + result.err
    for words in MISTAKES[given].split(" | "):
        assert words in result.err, result.err
    assert "Traceback" not in result.err + result.out and len(result.err) < 1200


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
    assert refused.code == 2 and "ADAUSDT.csv: line 2: 'x' in volume is no" in refused.err


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
