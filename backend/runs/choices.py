"""What a folder of bars offers for a backtest, and the choice that a form begins with: one that can be run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from pyarrow import ArrowException
from pyarrow.parquet import read_schema

from backend.training.curriculum.queries import WARM_UP_BARS
from simulator.data.catalog import Catalog, SeriesInfo
from simulator.errors import UserError
from simulator.market.timeframes import DAY_MS, TIMEFRAMES

_SYMBOLS = 2  # of the first choice
_DAYS, _MOST_BARS = 60, 2_000  # of its window, which is done in seconds


@dataclass(frozen=True)
class BacktestChoices:
    """The files of bars in `folder` that are not empty."""

    folder: Path
    series: tuple[SeriesInfo, ...]

    @classmethod
    def of(cls, folder: Path) -> BacktestChoices:
        """What is in `folder`. Raises `UserError` where it is not a folder, or holds no bars that can be used."""
        series = tuple(one for one in Catalog(folder).series() if one.first is not None and _has_bars(one.path))
        if not series:
            raise UserError(f"{folder}: its files hold no bars; choose another folder")
        return cls(folder, series)

    @property
    def timeframes(self) -> tuple[str, ...]:
        """The timeframes of which there are bars, or finer ones that they are made of."""
        return tuple(name for name in TIMEFRAMES if self.symbols(name))

    @property
    def timeframe(self) -> str:
        """The one of which most symbols have files, of equals the finest."""
        counted = Counter(one.timeframe for one in self.series)
        return max(reversed(self.timeframes), key=lambda name: counted[name])

    def symbols(self, timeframe: str) -> tuple[str, ...]:
        """The symbols that can be traded in these bars."""
        return tuple(sorted({one.symbol for one in self.series if _serves(one, timeframe)}))

    def suggested_symbols(self, timeframe: str) -> tuple[str, ...]:
        """Those with the longest history."""
        spans = {symbol: self._used(symbol, timeframe) for symbol in self.symbols(timeframe)}
        lengths = {symbol: -(last - first) // DAY_MS for symbol, (first, last) in spans.items()}
        return tuple(sorted(sorted(lengths, key=lambda symbol: (lengths[symbol], symbol))[:_SYMBOLS]))

    def suggested_days(self, symbols: Sequence[str], timeframe: str) -> tuple[date, date]:
        """The last weeks in which all these symbols have bars: the first day, from which on a team has its history
        where there is that number of bars, and the day after the last. Raises `UserError` where they have none in
        common."""
        spans, interval = [self._used(symbol, timeframe) for symbol in symbols], TIMEFRAMES[timeframe]
        if not spans:
            raise UserError("no symbol is chosen: choose at least one")
        begin, end = max(start for start, _ in spans), min(stop for _, stop in spans) + interval
        last = _day(end + DAY_MS - 1)
        first = _day(begin + WARM_UP_BARS * interval + DAY_MS - 1)
        if first >= last:
            first = _day(begin)
        if first >= last:
            raise UserError(f"{', '.join(symbols)} have no {timeframe} bars in common: choose other symbols")
        length = min(_DAYS, max(1, _MOST_BARS * interval // DAY_MS))
        return max(first, last - timedelta(days=length)), last

    def _used(self, symbol: str, timeframe: str) -> tuple[int, int]:
        """First and last open time (ms) of the file that is read of a symbol: the coarsest that serves."""
        served = [one for one in self.series if one.symbol == symbol and _serves(one, timeframe)]
        if not served:
            raise UserError(f"{self.folder} has no bars of {symbol} that {timeframe} bars can be made of")
        used = max(served, key=lambda one: TIMEFRAMES[one.timeframe])
        assert used.first is not None and used.last is not None
        return used.first, used.last


def _serves(one: SeriesInfo, timeframe: str) -> bool:
    """Whether bars of this timeframe can be made of a file."""
    return TIMEFRAMES[timeframe] % TIMEFRAMES[one.timeframe] == 0


def _has_bars(path: Path) -> bool:
    """Whether a file has the columns of bars: a daily index may be named as if it were one."""
    try:
        return {"open", "high", "low", "close"} <= set(read_schema(path).names)
    except (OSError, ArrowException):
        return True  # whoever reads it says what is wrong


def _day(moment: int) -> date:
    return datetime.fromtimestamp(moment / 1000, tz=UTC).date()
