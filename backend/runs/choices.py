"""What a folder of bars offers for a backtest, and the choice that a form begins with: one that can be run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from pyarrow import ArrowException
from pyarrow.parquet import read_schema

from backend.builders.strategies import made_ready, named_strategies, named_strategy
from backend.config.schema import model_named
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
        """What is in `folder`. Raises `UserError` where it is none, or holds no bars that can be used."""
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

    def coarser(self, timeframe: str) -> tuple[str, ...]:
        """The timeframes to which files of exactly these bars can be resampled; none where there is no such file."""
        if all(one.timeframe != timeframe for one in self.series):
            return ()
        length = TIMEFRAMES[timeframe]
        return tuple(name for name, other in TIMEFRAMES.items() if other > length and other % length == 0)

    def symbols(self, timeframe: str, resample: str = "") -> tuple[str, ...]:
        """The symbols that can be traded in these bars, or, with `resample`, in coarser ones of exactly these."""
        return tuple(sorted({one.symbol for one in self.series if _serves(one, timeframe, resample)}))

    def suggested_symbols(self, timeframe: str, resample: str = "") -> tuple[str, ...]:
        """Those with the longest history."""
        spans = {symbol: self._used(symbol, timeframe, resample) for symbol in self.symbols(timeframe, resample)}
        lengths = {symbol: -(last - first) // DAY_MS for symbol, (first, last) in spans.items()}
        return tuple(sorted(sorted(lengths, key=lambda symbol: (lengths[symbol], symbol))[:_SYMBOLS]))

    def days(
        self, symbols: Sequence[str], timeframe: str, resample: str = "", warm_up: int = WARM_UP_BARS
    ) -> tuple[date, date]:
        """The first day on which a decision on all these symbols can be made, which `warm_up` bars must come before,
        and the day after their last bar. Raises `UserError` where nothing is left.
        """
        spans = [self._used(symbol, timeframe, resample) for symbol in symbols]
        if not spans:
            raise UserError("no symbol is chosen: choose at least one")
        traded = resample or timeframe
        interval = TIMEFRAMES[traded]
        first = max(start for start, _ in spans) + warm_up * interval
        days = _day(first + DAY_MS - 1), _day(min(end for _, end in spans) + interval + DAY_MS - 1)
        if days[0] >= days[1]:
            raise UserError(
                f"{', '.join(symbols)} have too few {traded} bars in common: {warm_up} must come before the "
                "first decision; choose other symbols or finer bars"
            )
        return days

    def suggested_days(self, symbols: Sequence[str], timeframe: str, resample: str = "") -> tuple[date, date]:
        """The window of the first choice: the last weeks of what `days` allows a team, or where it allows none, a
        strategy that needs no history. Raises `UserError` as that does."""
        try:
            first, last = self.days(symbols, timeframe, resample)
        except UserError:
            first, last = self.days(symbols, timeframe, resample, 0)
        length = min(_DAYS, max(1, _MOST_BARS * TIMEFRAMES[resample or timeframe] // DAY_MS))
        return max(first, last - timedelta(days=length)), last

    def _used(self, symbol: str, timeframe: str, resample: str) -> tuple[int, int]:
        """First and last open time (ms) of the file that is read of a symbol: the coarsest that serves."""
        served = [one for one in self.series if one.symbol == symbol and _serves(one, timeframe, resample)]
        if not served:
            lacking = (
                f"file of {timeframe} bars of {symbol}"
                if resample
                else (f"bars of {symbol} that {timeframe} bars can be made of")
            )
            raise UserError(f"{self.folder} has no {lacking}")
        used = max(served, key=lambda one: TIMEFRAMES[one.timeframe])
        assert used.first is not None and used.last is not None
        return used.first, used.last


def warm_up_of(names: Sequence[str]) -> int:
    """The bars that must come before the first decision of all these teams and strategies; of a user's own, which is
    not imported for it, 0."""
    known, bars = named_strategies(), [0]
    for name in names:
        word, colon, _ = name.partition(":")
        if word in known:
            bars.append(made_ready(named_strategy(name))[1])
        elif not colon or model_named(name):
            bars.append(WARM_UP_BARS)
    return max(bars)


def _serves(one: SeriesInfo, timeframe: str, resample: str) -> bool:
    """Whether this file is one that is read: to resample takes exactly the timeframe's own."""
    if resample:
        return one.timeframe == timeframe
    return TIMEFRAMES[timeframe] % TIMEFRAMES[one.timeframe] == 0


def _has_bars(path: Path) -> bool:
    """Whether a file has the columns of bars: a daily index may be named as if it were one."""
    try:
        return {"open", "high", "low", "close"} <= set(read_schema(path).names)
    except (OSError, ArrowException):
        return True  # whoever reads it says what is wrong


def _day(moment: int) -> date:
    return datetime.fromtimestamp(moment / 1000, tz=UTC).date()
