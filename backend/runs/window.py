"""The window of a run: what was asked for, what is used, and why that is not the same."""

from __future__ import annotations

from dataclasses import dataclass

from backend.runs.requests import WindowRequest
from backend.training.curriculum.queries import WARM_UP_BARS
from simulator.backtest.run import Window
from simulator.errors import DataError, UserError
from simulator.market.market import Market
from simulator.market.timeframes import DAY_MS, format_time, parse_time

DAYS = 90  # of a window without a start
DAYS_OF_TEAM = 150  # of one for a team in the market of its training: less than a minute, and long enough to tell


@dataclass(frozen=True)
class ChosenWindow:
    """A window. `why` says in a few words where it comes from; `notes` are a sentence for each end that was moved."""

    window: Window
    why: str
    notes: tuple[str, ...] = ()


def requested_window(market: Market, request: WindowRequest, warm_up: int = WARM_UP_BARS) -> Window:
    """The window of a request; its dates are UTC. Raises `UserError`, and `DataError` if it is too short."""
    return choose_window(market, request, warm_up).window


def choose_window(
    market: Market, request: WindowRequest, warm_up: int = WARM_UP_BARS, days: int | None = DAYS
) -> ChosenWindow:
    """The window of a request, by default the last `days`, or with None all of the market.

    Its dates are UTC. The first decision comes at the first close from the start on that has `warm_up` bars before it;
    the last close is the last one up to the end.

    Raises `UserError`, and `DataError` if it is too short.
    """
    if request.decide_every < 0:
        raise UserError(f"decide_every is {request.decide_every}: give a number of bars, or 0 for once a day")
    start, end = (parse_time(text) if text else None for text in (request.start, request.end))
    begin, interval, last_bar = int(market.open_time[0]), market.interval, len(market) - 1
    last_asked = last_bar if end is None else (end - begin) // interval - 1
    last = min(last_bar, last_asked)
    first_asked = last - days * DAY_MS // interval if days is not None else max(warm_up, 0)
    if start is not None:
        first_asked = -((begin - start) // interval) - 1  # the first close at or after `start`
    first = max(first_asked, warm_up, 0)
    there = f"there are bars from {format_time(begin)} to {format_time(int(market.open_time[-1]))} UTC"
    if start is not None and start > market.open_time[-1]:
        raise DataError(
            f"{market.source}: the start {request.start} lies after the data: {there}; choose an earlier one"
        )
    if end is not None and end <= begin:
        raise DataError(f"{market.source}: the end {request.end} lies before the data: {there}; choose a later one")
    if start is not None and end is not None and start >= end:
        raise UserError(f"the start {request.start} is not before the end {request.end}: choose an earlier start")
    if first >= last:
        raise DataError(
            f"{market.source}: the window is too short: {warm_up} bars of history must come before its first "
            f"decision and at least one bar after; {there}. Choose other dates or a finer timeframe"
        )
    notes = []
    if first > first_asked:
        reason = f"the data begin at {format_time(begin)}"
        if warm_up:
            reason += f", and {warm_up} bars must come before the first decision"
        used = format_time(begin + (first + 1) * interval)
        notes.append(_moved("start", request.start or f"{days} days before the end", used, reason))
    if last < last_asked:
        notes.append(_moved("end", request.end, format_time(begin + (last + 1) * interval), "the data end there"))
    every = request.decide_every or max(1, DAY_MS // interval)
    return ChosenWindow(Window(int(first), int(last), every), _why(request, days, bool(notes)), tuple(notes))


def _moved(end: str, asked: str, used: str, reason: str) -> str:
    return f"{end} {asked} was asked for and {used} UTC is used: {reason}"


def _why(request: WindowRequest, days: int | None, moved: bool) -> str:
    if moved:
        return "not as asked, see the notes" if request.start or request.end else f"as much of {days} days as there is"
    if request.start:
        return "as asked" if request.end else "from the start as asked to the last bar"
    if days is None:
        return "all of it up to the end as asked" if request.end else "all of it; choose with --start and --end"
    if request.end:
        return f"the {days} days up to the end as asked; choose another start with --start"
    return f"the last {days} days; choose with --start and --end"
