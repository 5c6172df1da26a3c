"""A backtest run: teams and baselines over one window of a market, stored with every decision and told in a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from backend.config import Config, load_config
from backend.evaluation.compare import baselines
from backend.markets import costs_of, limits_of, load_market
from backend.report import write_report
from backend.runs import new_run_id, recorded_run
from backend.store.records import BacktestRecord
from backend.store.store import Store
from backend.stories import episode_records
from backend.teams import LoadedTeam, load_team
from backend.training.queries import WARM_UP_BARS
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.scheduler import run_all
from simulator.backtest import BacktestRun, Window
from simulator.errors import DataError
from simulator.market import TIMEFRAMES, Market, format_time, parse_time
from simulator.validation import gaps

DEFAULT_DAYS = 90
DAY_MS = TIMEFRAMES["1d"]

OnProgress = Callable[[int, int], None]  # bars done, of how many


def decision_interval(market: Market, decide_every: int) -> int:
    """Bars between decisions: as given, or a day's where 0, but at least one."""
    return decide_every or max(1, DAY_MS // market.interval)


def window_of(market: Market, start: int | None, end: int | None, decide_every: int) -> Window:
    """The window between two times (ms); by default the last 90 days. Raises `DataError` where too little is left.

    The tools need history, so the first decision comes no earlier than it is there.
    """
    last = len(market) - 1
    if end is not None:
        last = min(last, (end - int(market.open_time[0])) // market.interval - 1)
    if start is None:
        first = last - DEFAULT_DAYS * max(1, DAY_MS // market.interval)
    else:
        first = -((int(market.open_time[0]) - start) // market.interval) - 1  # the first close at or after `start`
    first = max(first, WARM_UP_BARS)
    if first >= last:
        raise DataError(
            f"{market.source}: the window is too short: {WARM_UP_BARS} bars of history must come before its first "
            f"decision and at least one bar after; there are bars from {format_time(int(market.open_time[0]))} to "
            f"{format_time(int(market.open_time[-1]))}. Choose other dates or a finer timeframe"
        )
    return Window(int(first), int(last), decide_every)


def backtest(
    config: Config,
    market: Market,
    window: Window,
    teams: Sequence[LoadedTeam],
    store: Store,
    run: str,
    folder: Path,
    seed: int,
    on_progress: OnProgress,
) -> Path:
    """Run every team and baseline over `window`, store all of it under `run`, and write the report. Returns its
    path."""
    costs, limits = costs_of(config.costs), limits_of(config.guard)
    cash, leverage = config.costs.cash, config.costs.max_leverage
    total = len(teams) * (window.stop - window.start)
    with recorded_run(
        store, run, "backtest", seed, market.content_hash, config,
        data=market.source, gaps=gaps(market).summary(), teams=[team.name for team in teams],
    ):  # fmt: skip
        episodes: dict[str, EpisodeResult] = {}
        for number, loaded in enumerate(teams):
            before = number * (window.stop - window.start)

            def advanced(bars: int, before: int = before) -> None:
                on_progress(before + bars, total)

            game = BacktestRun(market, window, cash, costs, leverage)
            [episode] = run_all([play(loaded.team, game, limits, seed, on_decision=advanced)], loaded.engine)
            episodes[loaded.name] = episode
            store.add_backtest(BacktestRecord(run, loaded.name, episode.result.to_dict()))
            store.add_decisions(episode_records(run, loaded.name, loaded.team.codec, episode))
        matched = [next(iter(episodes.values())).result]
        for name, [result] in baselines(market, [window], costs, cash, leverage, matched, seed).items():
            store.add_backtest(BacktestRecord(run, name, result.to_dict()))
    return write_report(store, run, folder)


def run_backtest_job(
    store: Store,
    *,
    data: Path,
    symbols: list[str],
    timeframe: str,
    team: str,
    start: str | None,
    end: str | None,
    seed: int,
    folder: Path,
    on_progress: OnProgress,
) -> str:
    """A backtest as a page asks for it: one team on a folder of data. Returns the run's id. Raises `UserError`."""
    overrides = [f"market.data={str(data)!r}", f"market.timeframe={timeframe}", f"market.symbols={','.join(symbols)!r}"]
    config = load_config("demo", overrides)
    market = load_market(config.market, config.costs)
    interval = decision_interval(market, config.team.decide_every)
    window = window_of(market, parse_optional(start), parse_optional(end), interval)
    run = new_run_id("backtest")
    backtest(config, market, window, [load_team(team, config.team)], store, run, folder / run, seed, on_progress)
    return run


def parse_optional(text: str | None) -> int | None:
    """Milliseconds of a date, None for none."""
    return parse_time(text) if text else None
