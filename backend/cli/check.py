"""The commands of `cryptosentinel check`: does a strategy or a team look ahead, and how much history does it need?"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from backend.cli.console import bars, console
from backend.cli.data import SymbolsOption, names
from backend.cli.options import (
    DataOption,
    DecideEveryOption,
    EndOption,
    FundingOption,
    NewsOption,
    PresetOption,
    ResampleOption,
    SetOption,
    StartOption,
    TimeframeOption,
    with_market,
)
from simulator.errors import UserError
from simulator.market.timeframes import format_time

if TYPE_CHECKING:  # imported inside the commands: torch takes seconds, and `--help` should not
    from simulator.backtest.run import Window
    from simulator.checks.lookahead import Drive, LookaheadFinding
    from simulator.market.market import Market

SHOWN = 10  # findings in the table; the file has all
LONGEST = 60  # characters of a value in the table

check_app = typer.Typer(
    help="Check a strategy or a team: look-ahead, and the history it needs. Exit code 1 where something is found.",
    no_args_is_help=True,
)

StrategyOption = Annotated[
    str, typer.Option("--strategy", help="A strategy's name, or your own: my_module:MyStrategy, from this folder.")
]
TeamOption = Annotated[str, typer.Option("--team", help="'scripted' or the folder of a training run.")]
TimesOption = Annotated[int, typer.Option("--times", min=2, help="How many decisions to test.")]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of times, other futures and sampling.")]
OutOption = Annotated[Path | None, typer.Option("--out", help="File to write the whole report to, as JSON.")]


@dataclass(frozen=True)
class _Case:
    """What is checked, on which market, where in it, and with which account."""

    name: str
    drive: Drive
    market: Market
    window: Window
    account: dict[str, Any]

    def told(self) -> dict[str, Any]:
        """What a report says about it."""
        window, market = self.window, self.market
        return {
            "subject": self.name,
            "source": market.source,
            "symbols": list(market.symbols),
            "timeframe": market.timeframe,
            "window": {"start": window.start, "stop": window.stop, "decide_every": window.decide_every},
            "first_decision": _close(market, window.start),
            "last_decision": _close(market, window.start + (window.decisions - 1) * window.decide_every),
        }


@check_app.command("lookahead")
def lookahead(
    strategy: StrategyOption = "",
    team: TeamOption = "",
    data: DataOption = None,
    symbols: SymbolsOption = "",
    timeframe: TimeframeOption = "",
    resample: ResampleOption = "",
    funding: FundingOption = None,
    news: NewsOption = None,
    start: StartOption = "",
    end: EndOption = "",
    decide_every: DecideEveryOption = 0,
    times: TimesOption = 20,
    draws: Annotated[int, typer.Option("--draws", min=0, help="Other futures for each of the times.")] = 3,
    seed: SeedOption = 1,
    config: PresetOption = "",
    set_: SetOption = None,
    out: OutOption = None,
) -> None:
    """Decide on markets that end, or become another one, after a time: nothing decided up to it may change."""
    from simulator.checks.lookahead import check_lookahead

    _check_out(out)
    case = _case(
        strategy, team, seed, data, symbols, timeframe, resample, funding, news, start, end, decide_every, config, set_
    )
    _announce(case)
    with bars() as shown:
        report = check_lookahead(
            case.drive, case.market, case.window, times=times, draws=draws, seed=seed,
            on_progress=lambda done, total: shown.report("times", done, total), **case.account,
        )  # fmt: skip
    _write(out, {"check": "lookahead", "clean": report.clean, **case.told(), **report.to_dict()})
    console.print(
        f"{report.comparisons} decisions compared, at {len(report.times)} times, each with the market cut off and "
        f"{report.draws} other futures; {report.with_orders} of these times had orders; seed {report.seed}"
    )
    if report.findings:
        console.print(_findings_table(f"{case.name}: {len(report.findings)} findings", report.findings))
        first = report.findings[0]
        console.print(
            f"{case.name} depends on what was not known, first at {format_time(first.time)} UTC (bar {first.bar})."
            if first.kind != "not_repeatable"
            else f"{case.name} decides otherwise on the very same data: fix its seed, and check again.",
            markup=False,
        )
        raise typer.Exit(1)
    if not report.with_orders:
        console.print("note: no order was sent at any of these times, which proves little; choose another window")
    console.print(f"{case.name}: no look-ahead found", markup=False)


@check_app.command("recursion")
def recursion(
    strategy: StrategyOption = "",
    team: TeamOption = "",
    data: DataOption = None,
    symbols: SymbolsOption = "",
    timeframe: TimeframeOption = "",
    resample: ResampleOption = "",
    funding: FundingOption = None,
    news: NewsOption = None,
    start: StartOption = "",
    end: EndOption = "",
    decide_every: DecideEveryOption = 0,
    times: TimesOption = 20,
    warm_up: Annotated[
        str, typer.Option("--warm-up", help="Lengths of history to try, in bars, with commas.")
    ] = "121,200,400,800",
    seed: SeedOption = 1,
    config: PresetOption = "",
    set_: SetOption = None,
    out: OutOption = None,
) -> None:
    """Decide with histories that begin later: from how many bars on does more history change nothing?"""
    from backend.training.curriculum.queries import WARM_UP_BARS
    from simulator.backtest.run import Window
    from simulator.checks.recursion import check_recursion

    lengths = _lengths(warm_up)
    _check_out(out)
    case = _case(
        strategy,
        team,
        seed,
        data,
        symbols,
        timeframe,
        resample,
        funding,
        news,
        start,
        end,
        decide_every,
        config,
        set_,
        greedy=True,
    )
    # What keeps state must be able to begin as early as the longest history.
    window = case.window
    early = min(max(lengths), window.start - WARM_UP_BARS) // window.decide_every * window.decide_every
    longer = Window(window.start - early, window.stop, window.decide_every)
    _announce(case)
    with bars() as shown:
        report = check_recursion(
            case.drive, case.market, longer, warm_ups=lengths, times=times, first_time=window.start, seed=seed,
            on_progress=lambda done, total: shown.report("times", done, total), **case.account,
        )  # fmt: skip
    _write(out, {"check": "recursion", "clean": report.clean, "seed": seed, **case.told(), **report.to_dict()})
    table = Table("warm-up", "compared", "changed", "exposure", "first change", title=case.name, title_justify="left")
    for one in report.warm_ups:
        table.add_row(
            str(one.bars),
            str(one.compared),
            str(one.changed),
            f"{one.exposure_difference:.2g}",
            "-" if one.first is None else f"{format_time(one.first.time)} {one.first.symbol} {one.first.field}",
        )
    console.print(table)
    console.print(f"{report.with_orders} of the {len(report.times)} times had orders; exposure: largest difference")
    if report.settled is None:
        console.print(
            f"{case.name}: even {max(lengths)} bars of history do not decide as all of it does: load more, or let it "
            "look back a fixed number of bars",
            markup=False,
        )
        raise typer.Exit(1)
    console.print(f"{case.name}: from {report.settled} bars of history on, more of it changes nothing", markup=False)


def _case(
    strategy: str,
    team: str,
    seed: int,
    data: Path | None,
    symbols: str,
    timeframe: str,
    resample: str,
    funding: Path | None,
    news: Path | None,
    start: str,
    end: str,
    decide_every: int,
    config: str,
    set_: list[str] | None,
    *,
    greedy: bool = False,
) -> _Case:
    """What the options name. `greedy` takes the sampling out of a team: its seeds count the bars of the history."""
    from backend.builders.market import account_of, limits_of, load_market
    from backend.builders.strategies import strategy_maker
    from backend.builders.teams import configured_team
    from backend.runs.backtest import decision_interval, parse_optional, settings_for, window_of
    from backend.runs.check import team_drive
    from simulator.checks.lookahead import drive_strategies

    if bool(strategy) == bool(team):
        raise UserError("say what to check: either --strategy NAME (or module:Class) or --team scripted (or a folder)")
    settings = settings_for(config, set_ or [], data)
    if data is None and not settings.market.data:
        data = Path("data/synthetic")
    settings = with_market(settings, data, symbols, timeframe, resample, funding, news)
    if strategy:
        name, drive = strategy, drive_strategies(strategy_maker(strategy))
    else:
        loaded = configured_team(team, settings)
        loaded = loaded.at_temperature(0.0) if greedy else loaded
        name, drive = loaded.name, team_drive(loaded, limits_of(settings.guard), seed)
    market = load_market(settings.market, settings.costs)
    window = window_of(market, parse_optional(start), parse_optional(end), decision_interval(market, decide_every))
    account = account_of(settings, market)
    if account.venue.mark is not None:
        # They lie on the bars of the whole market, and the altered markets have fewer.
        console.print("note: mark prices are left out here; accounts are valued at the trade price")
        account = replace(account, venue=replace(account.venue, mark=None))
    return _Case(name, drive, market, window, account.terms)


def _announce(case: _Case) -> None:
    told = case.told()
    console.print(
        f"{case.name} on {case.market.source}: {', '.join(case.market.symbols)}, {case.market.timeframe} bars, "
        f"decisions every {case.window.decide_every} bars from {told['first_decision']} to {told['last_decision']} UTC",
        markup=False,
    )
    console.print(f"data {case.market.content_hash[:12]}")


def _findings_table(title: str, findings: tuple[LookaheadFinding, ...]) -> Table:
    table = Table("kind", "time (UTC)", "symbol", "field", "whole market", "altered market", title=escape(title))
    table.title_justify = "left"
    for one in findings[:SHOWN]:
        cells = (one.kind, format_time(one.time), one.symbol, one.field, _short(one.expected), _short(one.found))
        table.add_row(*map(escape, cells))
    if len(findings) > SHOWN:
        table.caption = f"and {len(findings) - SHOWN} more; --out FILE.json has all"
    return table


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _lengths(text: str) -> list[int]:
    try:
        lengths = sorted({int(part) for part in names(text)})
    except ValueError:
        lengths = []
    if not lengths or lengths[0] < 1:
        raise UserError(f"--warm-up '{text}': give lengths in bars, at least 1 each, with commas, like 121,200,400")
    return lengths


def _check_out(out: Path | None) -> None:
    if out is not None and (out.is_dir() or not out.parent.is_dir()):
        raise UserError(f"--out {out}: give the path of a file in a folder that exists")


def _write(out: Path | None, report: dict[str, Any]) -> None:
    if out is None:
        return
    out.write_text(json.dumps(report, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    console.print(f"report: {out}", markup=False)


def _close(market: Market, bar: int) -> str:
    return format_time(int(market.open_time[bar]) + market.interval)
