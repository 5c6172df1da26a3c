"""Queries: the states from which rollouts start. A query is a coin, a bar and a position held; all its rollouts share
it.

Queries come from a window of bars and are drawn by seed, so that step t of a run asks the same questions whoever asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from backend.config.training import TrainingConfig
from backend.training.curriculum.hard_windows import Hard, cells_of
from cryptosentinel.team import derive_seed
from cryptosentinel.tools.context import horizon_volatility
from simulator.backtest.scenarios import recorded_path
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange_records import AccountView
from simulator.market.market import Market, MarketView
from simulator.market.price_paths import PricePaths
from simulator.synthetic.beliefs import regime_beliefs
from simulator.synthetic.truth import truth_of

WARM_UP_BARS = 121  # what the tools look back
CASH = 10_000.0
HELD = (0.0, 0.0, 0.0, 0.5, -0.5, 1.0, -1.0)  # exposures that queries start from, equally likely


@dataclass(frozen=True)
class Query:
    """One state. `market` holds the one coin that is decided on; `volatility` is that of the horizon, known at
    `bar`; `drift` is what the scenarios grow less by, a bar; `belief`, if there is one, the chances of bear, range and
    bull that they begin with in place of the hidden regime."""

    key: str
    market: Market
    symbol: str
    bar: int
    exposure: float
    volatility: float
    seed: int
    drift: float = 0.0
    belief: tuple[float, ...] | None = None

    @property
    def number(self) -> int:
        """Its place in the step that it was drawn for."""
        return int(self.key.rpartition("-")[2])

    def view(self) -> MarketView:
        return self.market.view(self.bar)

    def account(self) -> AccountView:
        """An account that holds the query's exposure, entered at the last close."""
        return account_holding(self.view(), self.symbol, self.exposure)

    def scenarios(self, paths: int, bars: int, costs: Costs | None = None) -> PricePaths:
        """Simulated scenarios of the state where the market's truth is known, the recorded one (a single path)
        otherwise, in which `costs` have the rate of funding that the data lacks."""
        if self.market.truth is None:
            scenarios = recorded_path(self.market, self.bar, bars, costs)
        else:
            belief = None if self.belief is None else [self.belief]
            scenarios = truth_of(self.market).scenarios(self.market, self.bar, paths, bars, self.seed, belief)
        return scenarios.without_drift(self.drift) if self.drift else scenarios


class QueryPool:
    """All states in the bars [start, stop) of a market, and the draws from them.

    With `detrend` each coin's scenarios lose what the coin drifts by on average over these bars, so that to be always
    long or short earns nothing and only timing does (Aronson 2006, Evidence-Based Technical Analysis, chapter 1).

    With `beliefs` (T, S, 3) the scenarios of a state begin with the regimes that could be believed in, where they else
    begin with the hidden one. What an agent sees is a part of the public data D, so by the tower property

        E[outcome | what it sees] = E[ E[outcome | D] | what it sees ]

    is the same, and what is left out is noise to it: which regime it happened to be (Rao-Blackwell).
    """

    def __init__(
        self,
        market: Market,
        start: int,
        stop: int,
        horizon: int,
        detrend: bool = False,
        beliefs: npt.NDArray[np.float64] | None = None,
    ) -> None:
        """Raises `DataError` if no bar has enough history before it and a whole horizon after it."""
        self.horizon = horizon
        self._markets = [market.select((symbol,)) for symbol in market.symbols]
        first, last = max(start, WARM_UP_BARS), min(stop, len(market) - horizon)
        if first >= last:
            raise DataError(
                f"{market.source}: bars {start}..{stop} are too short to train on: {WARM_UP_BARS} bars of history and "
                f"{horizon} bars of horizon are needed; use more bars or a shorter horizon"
            )
        self._bars = np.arange(first, last)
        self._clarity = np.stack([_clarity(one, self._bars, horizon) for one in self._markets])  # (S, bars)
        self._beliefs = beliefs
        self._drifts = [_drift(one, self._bars, horizon) if detrend else 0.0 for one in self._markets]

    def cell_of(self, symbol: str, bar: int) -> int:
        """The cell of `hard_windows` that a coin's bar is in, -1 for none."""
        [row] = [row for row, market in enumerate(self._markets) if market.symbols == (symbol,)]
        return int(self._cells[row, bar - self._bars[0]])

    @cached_property
    def _cells(self) -> npt.NDArray[np.int64]:
        """(S, bars); computed only for those who draw by it."""
        return cells_of(self._markets, self._bars)

    def draw(self, seed: int, step: int, count: int, easy: bool, hard: Hard | None = None) -> list[Query]:
        """`count` queries for a step. Easy ones are drawn from the half of the states whose trend is clearest; with
        `hard` some are drawn by what the team leaves lying in states like them."""
        rng = np.random.default_rng(derive_seed(seed, "queries", step))
        usable = ~np.isnan(self._clarity)
        if easy:
            usable &= self._clarity >= np.nanmedian(self._clarity)
        states = np.argwhere(usable)
        if len(states) == 0:
            raise DataError("no state to train on: every bar of the window lacks its history or its horizon")
        if hard is None:
            chosen = states[rng.integers(len(states), size=count)]
        else:
            chosen = states[rng.choice(len(states), size=count, p=hard.chances(self._cells[usable]))]
        exposures = rng.choice(HELD, size=count)
        queries: list[Query] = []
        for number, ((column, row), exposure) in enumerate(zip(chosen, exposures, strict=True)):
            market, bar = self._markets[column], int(self._bars[row])
            symbol = market.symbols[0]
            volatility = horizon_volatility(market.view(bar), symbol, self.horizon)
            assert volatility is not None  # _clarity is NaN where it is not known
            queries.append(
                Query(
                    key=f"{step}-{number}",
                    market=market,
                    symbol=symbol,
                    bar=bar,
                    exposure=float(exposure),
                    volatility=volatility,
                    seed=derive_seed(seed, "futures", step, number),
                    drift=self._drifts[column],
                    belief=None if self._beliefs is None else tuple(map(float, self._beliefs[bar, column])),
                )
            )
        return queries


def pools_of(
    training: TrainingConfig, market: Market, parts: Sequence[tuple[int, int]], horizon: int
) -> list[QueryPool]:
    """The pools of some parts of a market, with scenarios as the training wants them. Recorded markets have but one."""
    beliefs = regime_beliefs(market) if training.scenario_source == "beliefs" and market.truth is not None else None
    return [QueryPool(market, *part, horizon, training.experimental.detrend, beliefs) for part in parts]


def account_holding(view: MarketView, symbol: str, exposure: float, cash: float = CASH) -> AccountView:
    """An account of equity `cash` that is invested in `symbol` at `exposure`, entered at the last close."""
    mark = view.last_close(symbol)
    quantity = exposure * cash / mark
    others = [name for name in view.symbols if name != symbol]
    return AccountView(
        equity=cash,
        cash=cash - quantity * mark,
        initial_cash=cash,
        positions={symbol: quantity, **dict.fromkeys(others, 0.0)},
        exposure={symbol: exposure, **dict.fromkeys(others, 0.0)},
        entry_price={symbol: mark if exposure else None, **dict.fromkeys(others)},
        stop=dict.fromkeys(view.symbols),
        target=dict.fromkeys(view.symbols),
        mark={name: view.last_close(name) for name in view.symbols},
        drawdown=0.0,
    )


def _clarity(market: Market, bars: npt.NDArray[np.int64], horizon: int) -> npt.NDArray[np.float64]:
    """How far the next `horizon` bars go, up or down, in units of the volatility known before; NaN where unusable,
    (bars,).

    With a known truth it is the drift that is known to come, otherwise what was recorded: a trainer may grade its
    questions by their answers, since no agent sees the grade.
    """
    close = market.close[:, 0]
    returns = np.diff(np.log(close), prepend=np.nan)
    windows = np.lib.stride_tricks.sliding_window_view(returns, 60)  # the 60 returns up to bar 59 + k
    known = np.sum(~np.isnan(windows), axis=1) >= 30
    sigma = np.full(len(close), np.nan)
    sigma[59:] = np.where(known, np.sqrt(np.nanmean(np.where(known[:, None], windows, 0.0) ** 2, axis=1)), np.nan)
    if market.truth is not None:
        move = truth_of(market).drift[bars, 0] * horizon
    else:
        move = np.log(close[bars + horizon] / close[bars])
    with np.errstate(divide="ignore", invalid="ignore"):
        clarity = np.abs(move) / (sigma[bars] * np.sqrt(horizon))
    return np.where(np.isfinite(clarity) & (sigma[bars] > 0), clarity, np.nan)


def _drift(market: Market, bars: npt.NDArray[np.int64], horizon: int) -> float:
    """Mean simple return of a bar over the scenarios of `bars`: by the law where it is known, otherwise as recorded."""
    if market.truth is not None:
        return float(np.mean(truth_of(market).drift[bars, 0]))
    close = market.close[bars[0] : bars[-1] + horizon + 1, 0]
    returns = close[1:] / close[:-1] - 1.0
    known = returns[~np.isnan(returns)]
    return float(np.mean(known)) if len(known) else 0.0  # not listed yet
