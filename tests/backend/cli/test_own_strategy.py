"""A user's own strategy in `backtest` and `check`: what it is handed, the look-ahead verdict, the history it needs, and
each mistake in one message."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from backend import api
from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import limits_of
from backend.builders.strategies import named_strategies, named_strategy
from backend.builders.teams import load_team
from backend.config.load import load_config
from backend.decisions.backtest_document import BacktestDocument, read_backtests
from backend.runs import strategy_run
from backend.runs.check import team_drive
from backend.store.store import Store
from cryptosentinel.llm.scripted import ScriptedEngine
from simulator.backtest.run import Window
from simulator.checks.recursion import check_recursion
from simulator.checks.verdict import verdict_of_drive
from simulator.data.archive import write_market
from simulator.market.timeframes import format_time
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.command_line import Result, Run, program
from tests.lookahead_scenes import market_behind
from tests.team_scenes import codec, half_taught_policies, make_team

MARKET = generate(SyntheticConfig(bars=900, seed=3, symbols=("AAAUSDT", "BBBUSDT")))
FEW = generate(SyntheticConfig(bars=260, seed=3, symbols=("AAAUSDT", "BBBUSDT")))
OWN = '''
import gc
import pathlib
import numpy as np
from simulator.backtest.run import orders_for_target
from simulator.exchange.orders import Order

SEEN = {}


class Base:
    name = "own"

    def decide(self, view, account):
        return orders_for_target(view, account, "AAAUSDT", 0.4 if self.up(view) else 0.0)


class TakesMarket(Base):
    def __init__(self, market):
        self.closes = market.close[:, 0]

    def up(self, view):
        return self.closes[min(view.index + 1, len(self.closes) - 1)] > self.closes[view.index]


class TakesMore(Base):
    def __init__(self, fast, slow):
        pass


class MayTakeMarket(Base):
    """An argument with a default stays at it."""

    def __init__(self, market=None):
        self.market = market

    def up(self, view):
        return self.market is not None


class Learns(Base):
    def fit(self, view):
        self.level = view.bars("AAAUSDT", 10**6).close.mean()

    def up(self, view):
        return view.last_close("AAAUSDT") < self.level


def behind(view):
    return next(one for one in gc.get_referents(view) if hasattr(one, "close")).close[:, 0]


class Peeks(Base):
    def up(self, view):
        closes = behind(view)
        return closes[min(view.index + 1, len(closes) - 1)] > closes[view.index]


class PeeksEarly(Peeks):
    """Honest in the last 90 days, which are the default window."""

    def up(self, view):
        if view.index < 300:
            return super().up(view)
        return view.last_close("AAAUSDT") > view.bars("AAAUSDT", 20).close.mean()


def remember(bars):
    SEEN.setdefault(bars.symbol, bars.close)
    return np.zeros(len(bars))


class Remembers(Base):
    """Keeps in its module what an indicator was given."""

    def up(self, view):
        view.computed("AAAUSDT", remember)
        return SEEN["AAAUSDT"][min(view.index + 1, len(SEEN["AAAUSDT"]) - 1)] > view.last_close("AAAUSDT")


class CountsItself(Base):
    """Its module counts its instances; each run has a module of its own."""

    def __init__(self):
        SEEN["runs"] = SEEN.get("runs", 0) + 1
        self.runs = SEEN["runs"]

    def up(self, view):
        return (view.index // 7 + self.runs) % 2


class WrongCoin:
    """Written for another market."""

    def decide(self, view, account):
        return [Order("XRP", 1.0), Order("AAAUSDT", float("nan"))]


class LooksBack(Base):
    """Says how many bars it needs."""

    warmup = 30

    def up(self, view):
        assert view.index >= 30
        return view.last_close("AAAUSDT") > view.bars("AAAUSDT", 30).close.mean()


class NoNumber(Base):
    warmup = "many"


class LeavesAFile(Base):
    def __init__(self):
        self.path = pathlib.Path("state.txt")
        self.before = self.path.read_text() if self.path.exists() else ""
        self.path.write_text(self.before + "x")

    def up(self, view):
        return (view.index // 7 + len(self.before)) % 2


class Drifting(Base):
    """Sizes by an average over all there is."""

    def decide(self, view, account):
        ratio = view.last_close("AAAUSDT") / view.bars("AAAUSDT", 10**6).close.mean()
        return orders_for_target(view, account, "AAAUSDT", float(min(1.0, 0.5 * ratio)))


class Door(Base):
    def up(self, view):
        return view.bar("AAAUSDT", view.index + 1).close[0] > 0


class Nothing:
    pass


def made():
    return Peeks()


number = 3
'''


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """command("backtest", ...) in a folder with a long market in `bars`, a short one in `few`, and the strategies above
    in `my_own`; a check looks at the short one."""
    monkeypatch.delitem(sys.modules, "my_own", raising=False)
    write_market(MARKET, tmp_path / "bars")
    write_market(FEW, tmp_path / "few")
    (tmp_path / "my_own.py").write_text(OWN)
    # However slow the machine is, all of the history is looked at.
    monkeypatch.setattr(strategy_run, "_LEAST_SECONDS", float("inf"))
    whole = program(tmp_path, monkeypatch, capsys)

    def run(*arguments: object) -> Result:
        rest = ("few",) if arguments[0] == "check" else ("bars", "--timeframe", "4h", "--store", "here")
        return whole(*arguments, "--data", *rest)

    return run


CHECK = ("check", "lookahead", "--team")
TEST = ("backtest", "--decide-every", 2, "--baselines", "hold", "--team")


def stored(name: str) -> BacktestDocument:
    with Store.open("here") as store:
        [run] = [one.run for one in store.runs()]
        return next(one.document for one in read_backtests(store, run) if one.name == name)


@pytest.mark.parametrize("name", ["TakesMarket", "TakesMore"])
def test_an_argument_that_nothing_fills_is_a_mistake_that_says_what_to_do(command: Run, name: str) -> None:
    for arguments in ((*TEST, f"my_own:{name}"), (*CHECK, f"my_own:{name}")):
        result = command(*arguments)
        assert result.code == 2 and "Traceback" not in result.err
        assert "which nothing fills" in result.err and "Give each argument a default" in result.err
        assert ("fit(self, view)" in result.err) is (name == "TakesMarket")


@pytest.mark.parametrize("name", ["Learns", "MayTakeMarket", "CountsItself"])
def test_an_honest_strategy_ends_with_a_clean_verdict(command: Run, name: str) -> None:
    result = command(*TEST, f"my_own:{name}")
    assert result.code == 0, result.out + result.err
    assert f"my_own:{name}: no look-ahead found in " in result.out and "over the whole history" in result.out
    verdict = stored(f"my_own:{name}").lookahead
    assert verdict is not None and verdict.status == "clean" and verdict.trusted and verdict.coverage == 1.0
    assert stored("hold").lookahead is None, "the project's own are checked by its tests"


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("Peeks", "look_ahead", "LOOK-AHEAD: order at "),
        ("PeeksEarly", "look_ahead", "LOOK-AHEAD: order at "),
        ("Remembers", "look_ahead", "LOOK-AHEAD: order at "),
        ("LeavesAFile", "not_repeatable", "NOT REPEATABLE: two runs on the same data differ"),
    ],
)
def test_a_bad_verdict_is_loud(command: Run, name: str, status: str, words: str) -> None:
    result = command(*TEST, f"my_own:{name}")
    assert result.code == 1 and result.err == ""
    assert f"my_own:{name}: {words}" in result.out and "report: " in result.out
    verdict = stored(f"my_own:{name}").lookahead
    assert verdict is not None and verdict.status == status and not verdict.trusted and len(verdict.findings) == 1
    [folder] = [one for one in Path("runs").iterdir() if one.is_dir() and (one / "report.html").exists()]
    assert words in (folder / "report.html").read_text()
    facts = json.loads((folder / "report.json").read_text())
    assert facts["lookahead"][f"my_own:{name}"]["status"] == status
    assert "hold" not in facts["lookahead"]


def test_the_check_may_be_left_out_which_is_recorded(command: Run) -> None:
    result = command(*TEST, "my_own:Peeks", "--no-check-lookahead")
    assert result.code == 0 and "my_own:Peeks: not checked for look-ahead, as asked" in result.out
    verdict = stored("my_own:Peeks").lookahead
    assert verdict is not None and verdict.status == "skipped" and verdict.cuts == 0


def test_the_api_has_the_verdicts(command: Run) -> None:
    result = api.backtest("my_own:Peeks,my_own:Learns", data="bars", timeframe="4h", baselines=(), store="here")
    assert {name: one.status for name, one in result.lookahead.items()} == {
        "my_own:Peeks": "look_ahead", "my_own:Learns": "clean",
    }  # fmt: skip
    assert any("my_own:Peeks: LOOK-AHEAD" in note for note in result.notes)


REFUSED = (
    "my_own:WrongCoin: 1,798 orders refused: 899 unknown symbol XRP (the market has AAAUSDT, BBBUSDT); "
    "899 bad quantity (quantity nan)"
)


def test_orders_that_are_all_refused_are_the_first_thing_said(command: Run) -> None:
    """In the terminal, the report, the record of the run and the Python API."""
    result = command("backtest", "--decide-every", 1, "--baselines", "", "--team", "my_own:WrongCoin")
    out = " ".join(result.out.split())
    assert result.code == 0 and f"note: {REFUSED}" in out
    assert out.index(REFUSED) < out.index("return%")
    [folder] = [one for one in Path("runs").iterdir() if (one / "report.html").exists()]
    report = (folder / "report.html").read_text()
    assert report.index("1,798 orders refused") < report.index("made +0.00 %")
    again = api.backtest("my_own:WrongCoin", data="bars", timeframe="4h", baselines=(), store="other", decide_every=1)
    assert again.notes[0] == REFUSED
    assert again.summary.windows()[0].sentence.startswith("Nothing was traded: 1,798 orders refused")
    with Store.open("here") as store:
        assert store.runs()[0].config["notes"][0] == REFUSED


def test_the_window_is_that_of_the_strategy_and_what_was_moved_is_said(command: Run) -> None:
    """A strategy needs the bars that it names; a team's tools need theirs."""
    asked = ("backtest", "--baselines", "", "--start", "2020-01-01", "--end", "2031-01-01", "--team")
    from_first = " ".join(command(*asked, "my_own:Learns").out.split())
    assert "from 2020-01-01 04:00 to 2020-05-30 00:00 UTC (not as asked, see the notes)" in from_first
    assert "end 2031-01-01 was asked for and 2020-05-30 00:00 UTC is used: the data end there" in from_first
    looks_back = " ".join(command(*asked, "my_own:LooksBack").out.split())
    moved = (
        "start 2020-01-01 was asked for and 2020-01-06 04:00 UTC is used: the data begin at 2020-01-01 00:00, and 30 "
        "bars must come before the first decision"
    )
    assert f"note: {moved}" in looks_back
    checked = " ".join(command(*CHECK, "my_own:LooksBack", "--start", "2020-01-01", "--end", "2020-01-20").out.split())
    assert f"note: {moved}" in checked and "from 2020-01-06 04:00 to" in checked
    result = command(*asked, "my_own:NoNumber")
    assert result.code == 2 and "its warmup is 'many'; give a whole number of bars" in result.err


def test_a_second_load_shares_nothing_and_leaves_the_first_in_place(command: Run) -> None:
    own = named_strategy("my_own:CountsItself")
    assert own.load is not None
    module = sys.modules["my_own"]
    assert [vars(own.make())["runs"] for _ in range(2)] == [1, 2]
    assert vars(own.load()())["runs"] == 1 and sys.modules["my_own"] is module
    assert all(named_strategy(name).load is None for name in named_strategies())


def test_a_second_load_that_fails_is_no_verdict(command: Run) -> None:
    text = Path("my_own.py").read_text()
    Path("my_own.py").write_text(text + "\nif pathlib.Path('once').exists():\n    raise OSError('locked')\n")
    Path("my_own.py").write_text(Path("my_own.py").read_text() + "pathlib.Path('once').touch()\n")
    result = command(*TEST, "my_own:Learns")
    assert result.code == 1 and "my_own:Learns: NOT REPEATABLE" in result.out and "locked" in result.out


# -- check -------------------------------------------------------------------------------------------------------------


def test_an_honest_strategy_is_clean(command: Run) -> None:
    result = command(*CHECK, "sma_cross", "--decide-every", 2, "--out", "report.json")
    assert result.code == 0, result.err
    assert "sma_cross: no look-ahead found" in result.out and FEW.content_hash[:12] in result.out
    report = json.loads(Path("report.json").read_text())
    assert report["clean"] is True and report["findings"] == [] and report["check"] == "lookahead"
    assert report["data_hash"] == FEW.content_hash and report["subject"] == "sma_cross" and report["seed"] == 1
    assert report["first_decision"] == format_time(FEW.view(100).now) and report["window"]["stop"] == 259
    assert report["cuts"] == len(range(100, 259, 2)) and report["coverage"] == 1.0 and report["with_orders"] > 0
    idle = command(*CHECK, "flat")
    assert idle.code == 0 and "which proves little" in idle.out


def test_one_that_peeks_is_shown_where(command: Run) -> None:
    result = command(*CHECK, "my_own:made", "--decide-every", 1, "--out", "report.json")
    assert (result.code, result.err) == (1, "")
    report = json.loads(Path("report.json").read_text())
    [first] = report["findings"]
    assert report["clean"] is False and report["status"] == "look_ahead"
    assert f"LOOK-AHEAD: order at {format_time(first['time'])} UTC" in result.out
    assert first["time"] <= FEW.view(first["cut"]).now == first["after"] and first["expected"] != first["found"]


def test_what_asks_past_the_clock_fails(command: Run) -> None:
    door = command(*CHECK, "my_own:Door")
    assert door.code == 2 and "my_own:Door failed: LookAheadError" in door.err


@pytest.mark.parametrize(
    ("subject", "code", "settled", "sentence"),
    [
        ("sma_cross", 0, 100, "from 100 bars of history on, more of it changes nothing"),
        ("my_own:Drifting", 1, None, "even 150 bars of history do not decide as all of it does"),
    ],
)
def test_the_warm_up_that_is_needed(command: Run, subject: str, code: int, settled: int | None, sentence: str) -> None:
    result = command(
        "check", "recursion", "--team", subject, "--start", "2020-01-30", "--decide-every", 1,
        "--warm-up", "150,40,100", "--out", "report.json",
    )  # fmt: skip
    assert (result.code, result.err) == (code, ""), result.err
    assert sentence in result.out
    report = json.loads(Path("report.json").read_text())
    assert report["settled"] == settled and report["clean"] is (code == 0) and report["check"] == "recursion"
    assert [one["bars"] for one in report["warm_ups"]] == [40, 100, 150]
    assert report["warm_ups"][0]["changed"] > 0
    assert min(report["times"]) >= report["window"]["start"]


def test_bad_lengths_and_too_little_history_are_told(command: Run) -> None:
    for lengths in ("", "0", "a,b", "-5"):
        result = command("check", "recursion", "--team", "hold", f"--warm-up={lengths}")
        assert result.code == 2 and "give lengths in bars" in result.err
    result = command("check", "recursion", "--team", "hold", "--warm-up", "1000")
    assert result.code == 2 and "no decision has more than 1000 bars of history" in result.err


def test_a_sampled_team_is_compared_under_one_seed() -> None:
    team = LoadedTeam("half", make_team(horizon_bars=18), ScriptedEngine(codec(), half_taught_policies()))
    limits = limits_of(load_config("demo").guard)
    verdict = verdict_of_drive(team_drive(team, limits, 7), FEW, Window(121, 259, 6), {})
    assert verdict.status == "clean" and verdict.with_orders > 0
    settled = check_recursion(team_drive(team, limits, 7), FEW, Window(121, 259, 6), warm_ups=(140,), times=3)
    assert settled.warm_ups[0].compared == 3


def test_a_team_that_is_told_the_future_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_team("scripted", load_config("demo").team)
    limits = limits_of(load_config("demo").guard)
    from cryptosentinel import team as team_module

    honest = team_module.orders_for_target

    def by_the_next_bar(view: Any, account: Any, symbol: str, exposure: float, *rest: Any, **more: Any) -> Any:
        inside = market_behind(view)
        column, after = inside.column(symbol), min(view.index + 1, len(inside) - 1)
        rises = inside.close[after, column] > inside.close[view.index, column]
        return honest(view, account, symbol, 0.2 if rises else -0.2, *rest, **more)

    monkeypatch.setattr(team_module, "orders_for_target", by_the_next_bar)
    verdict = verdict_of_drive(team_drive(loaded, limits, 7), FEW, Window(121, 259, 6), {})
    assert verdict.status == "look_ahead" and verdict.findings[0].kind == "order", verdict.sentence()
