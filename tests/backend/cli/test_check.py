"""`cryptosentinel check`: exit code 0 for what is honest, 1 with where and what for what is not, 2 for a mistake."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import limits_of
from backend.builders.teams import load_team
from backend.config.load import load_config
from backend.runs.check import team_drive
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

MARKET = generate(SyntheticConfig(bars=260, seed=3, symbols=("AAAUSDT", "BBBUSDT")))

OWN = '''
class Base:
    name = "own"

    def decide(self, view, account):
        return orders_for_target(view, account, "AAAUSDT", 0.4 if self.up(view) else 0.0)


class Honest(Base):
    def up(self, view):
        return view.last_close("AAAUSDT") > view.bars("AAAUSDT", 20).close.mean()


class Drifting(Base):
    """Sizes by an average over all there is."""

    def decide(self, view, account):
        ratio = view.last_close("AAAUSDT") / view.bars("AAAUSDT", 10**6).close.mean()
        return orders_for_target(view, account, "AAAUSDT", float(min(1.0, 0.5 * ratio)))


class Peeking(Base):
    def up(self, view):
        closes = next(one for one in gc.get_referents(view) if hasattr(one, "close")).close[:, 0]
        return closes[min(view.index + 1, len(closes) - 1)] > closes[view.index]


class Door(Base):
    def up(self, view):
        return view.bar("AAAUSDT", view.index + 1).close[0] > 0


def mean_of_all(bars):
    return np.full(len(bars), np.nanmean(bars.close))


class Precomputes(Base):
    def up(self, view):
        return view.last_close("AAAUSDT") < view.computed("AAAUSDT", mean_of_all)[-1]


class Unseeded(Base):
    def up(self, view):
        return np.random.default_rng().random() < 0.5


class TooMuch(Base):
    def __init__(self, market, window):
        pass


class Broken(Base):
    def up(self, view):
        return 1 / 0


class Nothing:
    pass


def made():
    return Peeking()


def empty():
    return object()


number = 3
'''


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """check("lookahead", ...) runs the program in a folder with a market in `bars` and a module `my_own`."""
    monkeypatch.delitem(sys.modules, "my_own", raising=False)
    write_market(MARKET, tmp_path / "bars")
    imports = "import gc\nimport numpy as np\nfrom simulator.backtest.run import orders_for_target\n"
    (tmp_path / "my_own.py").write_text(imports + OWN)

    whole = program(tmp_path, monkeypatch, capsys)

    def run(*arguments: object) -> Result:
        data = () if {"--data", "--help"} & set(arguments) else ("--data", "bars")
        return whole("check", *arguments, *data)

    return run


# Look-ahead


@pytest.mark.parametrize(("subject", "warm_up"), [("sma_cross", 100), ("hold", 0), ("my_own:Honest", 0)])
def test_an_honest_strategy_is_clean(check: Run, subject: str, warm_up: int) -> None:
    result = check("lookahead", "--team", subject, "--decide-every", 2, "--out", "report.json")
    assert result.code == 0, result.err
    assert f"{subject}: no look-ahead found" in result.out and MARKET.content_hash[:12] in result.out
    report = json.loads(Path("report.json").read_text())
    assert report["clean"] is True and report["findings"] == [] and report["check"] == "lookahead"
    assert report["data_hash"] == MARKET.content_hash and report["subject"] == subject and report["seed"] == 1
    assert report["first_decision"] == format_time(MARKET.view(warm_up).now) and report["window"]["stop"] == 259
    assert report["cuts"] == len(range(warm_up, 259, 2)) and report["coverage"] == 1.0 and report["with_orders"] > 0


@pytest.mark.parametrize("subject", ["Peeking", "made", "Precomputes"])
def test_one_that_peeks_is_shown_where(check: Run, subject: str) -> None:
    result = check("lookahead", "--team", f"my_own:{subject}", "--decide-every", 1, "--out", "report.json")
    assert (result.code, result.err) == (1, "")
    report = json.loads(Path("report.json").read_text())
    [first] = report["findings"]
    assert report["clean"] is False and report["status"] == "look_ahead"
    assert f"LOOK-AHEAD: order at {format_time(first['time'])} UTC" in result.out or first["kind"] == "indicator"
    assert first["time"] <= MARKET.view(first["cut"]).now == first["after"] and first["expected"] != first["found"]


def test_what_does_not_repeat_and_what_asks_past_the_clock(check: Run) -> None:
    result = check("lookahead", "--team", "my_own:Unseeded", "--decide-every", 1)
    assert result.code == 1 and "NOT REPEATABLE" in result.out and "fix its seeds" in result.out
    door = check("lookahead", "--team", "my_own:Door")
    assert door.code == 2 and "my_own:Door failed: LookAheadError" in door.err


def test_a_note_says_when_nothing_was_ordered(check: Run) -> None:
    result = check("lookahead", "--team", "flat")
    assert result.code == 0 and "which proves little" in result.out


# Recursion


@pytest.mark.parametrize(
    ("subject", "code", "settled", "sentence"),
    [
        ("sma_cross", 0, 100, "from 100 bars of history on, more of it changes nothing"),
        ("my_own:Drifting", 1, None, "even 150 bars of history do not decide as all of it does"),
    ],
)
def test_the_warm_up_that_is_needed(check: Run, subject: str, code: int, settled: int | None, sentence: str) -> None:
    result = check(
        "recursion", "--team", subject, "--start", "2020-01-30", "--decide-every", 1, "--warm-up", "150,40,100",
        "--out", "report.json",
    )  # fmt: skip
    assert (result.code, result.err) == (code, ""), result.err
    assert sentence in result.out
    report = json.loads(Path("report.json").read_text())
    assert report["settled"] == settled and report["clean"] is (code == 0) and report["check"] == "recursion"
    assert [one["bars"] for one in report["warm_ups"]] == [40, 100, 150]
    assert report["warm_ups"][0]["changed"] > 0
    assert min(report["times"]) >= report["window"]["start"]


def test_the_history_that_the_scripted_team_needs(check: Run) -> None:
    result = check("recursion", "--team", "scripted", "--times", 4, "--warm-up", "5,130", "--decide-every", 3)
    assert result.code == 0, result.err
    assert "scripted: from 130 bars of history on" in result.out


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to check is named: give --team"),
        (["--team", "holdd"], "no team 'holdd' (did you mean 'hold'?)"),
        (["--team", "absent:Own"], "no module 'absent' in"),
        (["--team", "my_own:Absent"], "no class or function 'Absent'; its classes with a method decide are Base"),
        (["--team", "my_own:number"], "no class or function 'number'"),
        (["--team", "my_own:"], "write module:MyStrategy, like my_module:MyStrategy"),
        (["--team", "../my_own:Honest"], "write module:MyStrategy, like my_module:MyStrategy"),
        (["--team", "my_own:TooMuch"], "needs the arguments market, window"),
        (["--team", "my_own:Nothing"], "makes a Nothing without a method decide"),
        (["--team", "my_own:empty"], "makes a object without a method decide"),
        (["--team", "my_own:Broken"], "ZeroDivisionError: division by zero (my_own.py, line"),
        (["--team", "wrong_syntax:A"], "cannot be imported: SyntaxError"),
        (["--team", "wrong_import:A"], "cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'"),
        (["--team", "hold", "--out", "absent/report.json"], "give the path of a file in a folder that exists"),
    ],
)
def test_a_mistake_is_one_message(check: Run, arguments: list[str], message: str) -> None:
    Path("wrong_syntax.py").write_text("class A(:\n")
    Path("wrong_import.py").write_text("import no_such_thing\n")
    result = check("lookahead", *arguments)
    assert result.code == 2 and "Traceback" not in result.err
    assert message in result.err


@pytest.mark.parametrize("lengths", ["", "0", "a,b", "-5"])
def test_bad_lengths_are_refused(check: Run, lengths: str) -> None:
    result = check("recursion", "--team", "hold", f"--warm-up={lengths}")
    assert result.code == 2 and "give lengths in bars" in result.err


def test_too_little_history_is_told(check: Run) -> None:
    result = check("recursion", "--team", "hold", "--warm-up", "1000")
    assert result.code == 2 and "no decision has more than 1000 bars of history" in result.err


# The parts


def test_a_sampled_team_is_compared_under_one_seed() -> None:
    team = LoadedTeam("half", make_team(horizon_bars=18), ScriptedEngine(codec(), half_taught_policies()))
    limits = limits_of(load_config("demo").guard)
    verdict = verdict_of_drive(team_drive(team, limits, 7), MARKET, Window(121, 259, 6), {})
    assert verdict.status == "clean" and verdict.with_orders > 0
    settled = check_recursion(team_drive(team, limits, 7), MARKET, Window(121, 259, 6), warm_ups=(140,), times=3)
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
    verdict = verdict_of_drive(team_drive(loaded, limits, 7), MARKET, Window(121, 259, 6), {})
    assert verdict.status == "look_ahead" and verdict.findings[0].kind == "order", verdict.sentence()
