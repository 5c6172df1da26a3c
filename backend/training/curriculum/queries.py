"""Queries: the states from which rollouts start. A query is a coin, a bar and a position held; all its rollouts share
it. Of a team that decides on the whole portfolio it is a bar and what is held of every coin.

Queries come from a window of bars and are drawn by seed, so that step t of a run asks the same questions in every
process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from backend.config.schema import Config
from backend.config.training import TrainingConfig
from backend.training.curriculum.recorded_states import read_states
from cryptosentinel.scripted_team import coin_size
from cryptosentinel.team import derive_seed
from cryptosentinel.tools.context import book_volatility, horizon_volatility
from simulator.backtest.scenarios import recorded_path
from simulator.errors import DataError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange_records import AccountView
from simulator.market.market import Market, MarketView
from simulator.market.price_paths import PricePaths
from simulator.synthetic.oracle import regime_beliefs
from simulator.synthetic.truth import truth_of

WARM_UP_BARS = 121  # what the tools look back
CASH = 10_000.0
HELD = (0.0, 0.0, 0.0, 0.5, -0.5, 1.0, -1.0)  # exposures that queries start from, equally likely
CASH_SHARE = 0.25  # of the queries on a portfolio that start from cash alone


@dataclass(frozen=True)
class Query:
    """One state. `market` holds the one coin that is decided on, and `around` all coins of the market: a team sees the
    others too, as it does in a backtest. `volatility` is that of the horizon, known at `bar`; `belief`,
    if there is one, the chances of bear, range and bull that scenarios begin with in place of the hidden regime."""

    key: str
    market: Market
    symbol: str
    bar: int
    exposure: float
    volatility: float
    seed: int
    around: Market
    belief: tuple[float, ...] | None = None

    @property
    def number(self) -> int:
        """Its place in the step that it was drawn for."""
        return int(self.key.rpartition("-")[2])

    @property
    def symbols(self) -> tuple[str, ...]:
        """The coins that are decided on."""
        return self.market.symbols

    def exposures(self) -> dict[str, float]:
        """What is held of each coin."""
        return {self.symbol: self.exposure}

    def volatility_of(self, symbol: str) -> float | None:
        """A coin's own volatility over the horizon, None where it is not known."""
        return self.volatility

    def position_size(self) -> float:
        """The exposure that a position in one coin may have, of those that practice asks about."""
        return 1.0

    def view(self) -> MarketView:
        return self.around.view(self.bar)

    def account(self) -> AccountView:
        """An account in the coins that are decided on, which holds the query's exposures, entered at the last close."""
        return account_holding(self.market.view(self.bar), self.exposures())

    def _beliefs(self) -> list[tuple[float, ...]] | None:
        return None if self.belief is None else [self.belief]

    def scenarios(self, paths: int, bars: int, costs: Costs | None = None) -> PricePaths:
        """Simulated scenarios of the state where the market's truth is known, the recorded one (a single path)
        otherwise, in which `costs` have the rate of funding that the data lacks."""
        if self.market.truth is None:
            return recorded_path(self.market, self.bar, bars, costs)
        return truth_of(self.market).scenarios(self.market, self.bar, paths, bars, self.seed, self._beliefs())


@dataclass(frozen=True)
class PortfolioQuery(Query):
    """A state of all coins of the market with one account. `symbol` is the coin that the sub-agents practice on, and
    `exposure` what is held of it.

    `volatility` is that of a fully invested book of equal parts of the coins (`book_volatility`). It is the same for
    all rollouts and known at the bar, so no rollout can choose what it is measured by, as it could with the volatility
    of the book that it chooses; and what spreads its risk earns more of it than one coin would.
    """

    held: tuple[float, ...] = ()  # (S,) in the order of the market
    volatilities: tuple[float | None, ...] = ()  # (S,) of each coin alone
    beliefs: tuple[tuple[float, ...], ...] | None = None  # (S, 3)

    def exposures(self) -> dict[str, float]:
        return dict(zip(self.symbols, self.held, strict=True))

    def volatility_of(self, symbol: str) -> float | None:
        return self.volatilities[self.symbols.index(symbol)]

    def position_size(self) -> float:
        return coin_size(len(self.symbols))

    def _beliefs(self) -> list[tuple[float, ...]] | None:
        return None if self.beliefs is None else list(self.beliefs)


class QueryPool:
    """All states in the bars [start, stop) of a market, and the draws from them.

    With `gross_limit` a state is that of all coins, with exposures whose absolute values sum to that at most. A coin
    that is not listed at a bar, or no more at the horizon's end, is there with its name and nothing held.

    With `beliefs` (T, S, 3) the scenarios of a state begin with the regimes that could be believed in, where they else
    begin with the hidden one. What an agent sees is a part of the public data D, so by the tower property

        E[outcome | what it sees] = E[ E[outcome | D] | what it sees ]

    is the same, and what is left out is noise to it: which regime it happened to be (Rao-Blackwell).

    With `states`, exposures by bar and symbol, only these bars are drawn from, and what is held there is theirs.
    """

    def __init__(
        self,
        market: Market,
        start: int,
        stop: int,
        horizon: int,
        beliefs: npt.NDArray[np.float64] | None = None,
        gross_limit: float | None = None,
        states: Mapping[int, Mapping[str, float]] | None = None,
    ) -> None:
        """Raises `DataError` if no bar has enough history before it and a whole horizon after it."""
        self.horizon, self._states = horizon, states
        self.market = market
        self._gross_limit = gross_limit
        self._markets = [market.select((symbol,)) for symbol in market.symbols]
        first, last = max(start, WARM_UP_BARS), min(stop, len(market) - horizon)
        if first >= last:
            raise DataError(
                f"{market.source}: bars {start}..{stop} are too short to train on: {WARM_UP_BARS} bars of history and "
                f"{horizon} bars of horizon are needed; use more bars or a shorter horizon"
            )
        self._bars = np.arange(first, last)
        self._among = np.array([states is None or bar in states for bar in range(first, last)])  # (bars,)
        self._clarity = np.stack([_clarity(one, self._bars, horizon) for one in self._markets])  # (S, bars)
        self._beliefs = beliefs

    def draw(self, seed: int, step: int, count: int, easy: bool) -> list[Query]:
        """`count` queries for a step. Easy ones are drawn from the half of the states whose trend is clearest."""
        rng = np.random.default_rng(derive_seed(seed, "queries", step))
        if self._gross_limit is not None:
            return self._draw_portfolios(rng, seed, step, count, easy, self._gross_limit)
        usable = ~np.isnan(self._clarity) & self._among
        if easy and usable.any():
            usable &= self._clarity >= np.median(self._clarity[usable])
        states = np.argwhere(usable)
        if len(states) == 0:
            raise self._nothing()
        chosen = states[rng.integers(len(states), size=count)]
        exposures = rng.choice(HELD, size=count)
        queries: list[Query] = []
        for number, ((column, row), exposure) in enumerate(zip(chosen, exposures, strict=True)):
            market, bar = self._markets[column], int(self._bars[row])
            symbol = market.symbols[0]
            held = float(exposure) if self._states is None else self._states[bar][symbol]
            volatility = horizon_volatility(market.view(bar), symbol, self.horizon)
            assert volatility is not None  # _clarity is NaN where it is not known
            queries.append(
                Query(
                    key=f"{step}-{number}",
                    market=market,
                    symbol=symbol,
                    bar=bar,
                    exposure=held,
                    volatility=volatility,
                    seed=derive_seed(seed, "futures", step, number),
                    around=self.market,
                    belief=None if self._beliefs is None else tuple(map(float, self._beliefs[bar, column])),
                )
            )
        return queries

    def _draw_portfolios(
        self, rng: np.random.Generator, seed: int, step: int, count: int, easy: bool, gross_limit: float
    ) -> list[Query]:
        """Bars at which some coin is usable; easy ones are those whose usable coins have the clearest trends in the
        mean."""
        known = ~np.isnan(self._clarity)
        numbers = known.sum(axis=0)
        clarity = np.where(known, self._clarity, 0.0).sum(axis=0) / np.maximum(numbers, 1)
        usable = (numbers > 0) & self._among
        if usable.any() and easy:
            usable &= clarity >= np.median(clarity[usable])
        rows = np.flatnonzero(usable)
        if len(rows) == 0:
            raise self._nothing()
        queries: list[Query] = []
        for number, row in enumerate(rows[rng.integers(len(rows), size=count)]):
            bar, symbols = int(self._bars[row]), self.market.symbols
            view = self.market.view(bar)
            held = _book(rng, known[:, row], gross_limit)
            if self._states is not None:
                held = tuple(self._states[bar][symbol] for symbol in symbols)
            column = int(rng.choice(np.flatnonzero(known[:, row])))
            volatility = book_volatility(view, [symbols[one] for one in np.flatnonzero(known[:, row])], self.horizon)
            assert volatility is not None  # a usable coin has its returns
            queries.append(
                PortfolioQuery(
                    key=f"{step}-{number}",
                    market=self.market,
                    symbol=symbols[column],
                    bar=bar,
                    exposure=held[column],
                    volatility=volatility,
                    seed=derive_seed(seed, "futures", step, number),
                    around=self.market,
                    held=held,
                    volatilities=tuple(
                        horizon_volatility(view, symbol, self.horizon) if known[place, row] else None
                        for place, symbol in enumerate(symbols)
                    ),
                    beliefs=None
                    if self._beliefs is None
                    else tuple(tuple(map(float, coin)) for coin in self._beliefs[bar]),
                )
            )
        return queries

    def _nothing(self) -> DataError:
        if self._states is None:
            return DataError("no state to train on: every bar of the window lacks its history or its horizon")
        return DataError(
            "no state to train on: none of those that the session recorded lies in this part of the history, with its "
            "horizon; let the session run on"
        )


def _book(rng: np.random.Generator, known: npt.NDArray[np.bool_], gross_limit: float) -> tuple[float, ...]:
    """What is held of each coin, (S,): nothing, or of those that are `known` parts of a usual size, scaled down to the
    gross limit."""
    exposures = rng.choice(HELD, size=len(known)) * coin_size(len(known))
    if rng.random() < CASH_SHARE:
        exposures[:] = 0.0
    exposures[~known] = 0.0
    gross = float(np.abs(exposures).sum())
    if gross > gross_limit:
        exposures *= gross_limit / gross
    # Towards 0, so that rounding passes no limit; and no -0.0, which would be another account.
    return tuple(float(np.trunc(100.0 * one + np.sign(one) * 1e-9) / 100.0) + 0.0 for one in exposures)


def gross_limit(config: Config) -> float | None:
    """Of a team that decides on the whole portfolio the most that its queries hold, None of one that decides coin by
    coin."""
    return config.guard.max_gross_exposure if config.team.portfolio else None


def pools_of(
    training: TrainingConfig,
    market: Market,
    parts: Sequence[tuple[int, int]],
    horizon: int,
    gross: float | None = None,
) -> list[QueryPool]:
    """The pools of some parts of a market, with scenarios as the training wants them. Recorded markets have but one.
    `gross` is the `gross_limit` of queries on a portfolio. Raises `DataError` for `training.states` of other bars."""
    beliefs = regime_beliefs(market) if training.scenario_source == "beliefs" and market.truth is not None else None
    states = read_states(Path(training.states)).bars_in(market) if training.states else None
    return [QueryPool(market, *part, horizon, beliefs, gross, states) for part in parts]


def account_holding(view: MarketView, exposures: Mapping[str, float], cash: float = CASH) -> AccountView:
    """An account of equity `cash` that is invested at `exposures` (0 where a coin is not named), entered at the last
    closes."""
    marks = {name: view.last_close(name) for name in view.symbols}
    held = {name: exposures.get(name, 0.0) for name in view.symbols}
    positions = {name: exposure * cash / marks[name] if exposure else 0.0 for name, exposure in held.items()}
    return AccountView(
        equity=cash,
        cash=cash - sum(quantity * marks[name] for name, quantity in positions.items() if quantity),
        initial_cash=cash,
        positions=positions,
        exposure=held,
        entry_price={name: marks[name] if exposure else None for name, exposure in held.items()},
        stop=dict.fromkeys(view.symbols),
        target=dict.fromkeys(view.symbols),
        mark=marks,
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
