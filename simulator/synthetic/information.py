"""What each source of knowledge of a private market is worth for one decision, by construction.

A decision is one exposure for the horizon, reached at the next open at the market, or by a limit at the price now that
rests for the horizon. Its value is an expected utility u over scenarios, given what is known. What is hidden are the
drift's regime, the crowding and the spread at the next open; their chains are independent of one another, so the
posterior is a product, and a source that is lacking has the stationary law of its chain in its place. With a(E) the
best decision given the evidence E,

    value(E) = u(a(E) | all evidence),     private value of a source X = value(all) - value(all but X),

which is the value of information (Howard 1966). Drift is known as `simulator.synthetic.oracle` can know it from
prices, headlines and funding; crowding and spread as they are. Volatility and the funding that is due count as known
to all. The best of several decisions on some scenarios is partly the luckiest, so it is chosen on one set of scenarios
and valued on another, and the other way round. A limit pays no spread and is filled where a bar goes through it, so it
is cheaper where the spread is wide, and is missed where the price runs away. At most one jump counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol, get_args

import numpy as np

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.market.market import Market
from simulator.market.price_paths import PricePaths
from simulator.synthetic.oracle import LinearCosts
from simulator.synthetic.private import (
    CROWD_SHARE,
    JUMP_SIZE,
    WIDE_BARS,
    WIDE_SHARE,
    WIDE_SPREAD,
    jump_probability,
    jumped,
)
from simulator.synthetic.truth import truth_of

KnowledgeSource = Literal["drift", "crowding", "spread"]
SOURCES: Final[tuple[KnowledgeSource, ...]] = get_args(KnowledgeSource)
EXPOSURE_LEVELS: Final = (-1.0, -0.5, 0.0, 0.5, 1.0)
Utility = Callable[[FloatArray], FloatArray]  # (K, P) net returns of K choices on P scenarios -> (K,)

_SPREADS = 4  # of a wide market, evenly, that stand for all of them


class State(Protocol):
    """A state to decide in: a market of one coin, a bar, and the exposure held."""

    @property
    def market(self) -> Market: ...

    @property
    def bar(self) -> int: ...

    @property
    def exposure(self) -> float: ...


@dataclass(frozen=True)
class DecisionValues:
    """Utilities expected in one state: of the best decision given all evidence, given none, given all but one source,
    and of leaving the position as it is; `oracle` also knows the regime of the drift. `exposures` has the chosen ones
    by "all", "none", "oracle" and source, and `by_limit` which of them are reached by a limit. `came` is what the best
    decision given all evidence earns given the regime that was there: on average over states the same as `all`, and no
    decision that knows no more earns more. `utilities` (2, 2 L) are those of each exposure given all evidence, on
    either half of the scenarios: reached at the market, and then by a limit."""

    all: float
    none: float
    hold: float
    oracle: float
    came: float
    without: dict[KnowledgeSource, float]
    exposures: dict[str, float]
    by_limit: dict[str, bool]
    utilities: FloatArray = field(compare=False, repr=False)

    @property
    def at_market(self) -> float:
        """The utility of the best decision given all evidence of those that send no limits."""
        first, second = self.utilities[:, : self.utilities.shape[1] // 2]
        return float(first[second.argmax()] + second[first.argmax()]) / 2.0

    def private(self, source: KnowledgeSource) -> float:
        """What the source adds to the others."""
        return self.all - self.without[source]


def decision_values(
    state: State,
    belief: Sequence[float],
    costs: LinearCosts,
    utility: Utility,
    *,
    horizon: int,
    paths: int,
    seed: int,
    levels: Sequence[float] = EXPOSURE_LEVELS,
) -> DecisionValues:
    """The values of knowledge in a state, on twice `paths` scenarios. `belief` is (bear, range, bull), by
    `regime_beliefs`. A source's private value is above 0 on average over states, and 0 in each state where its lack
    changes no decision.

    Raises `DataError` for a market without private knowledge.
    """
    truth, bar = truth_of(state.market), state.bar
    if truth.private is None:
        raise DataError(f"{state.market.source}: its knowledge is not private; give a market of kind 'private'")
    edge = truth.config.edge
    prior = {
        "drift": np.array(truth.config.regime_weights()),
        "crowding": np.array([1.0 - CROWD_SHARE, CROWD_SHARE]),
        "spread": np.array([0.0, 1.0 - WIDE_SHARE, *[WIDE_SHARE / _SPREADS] * _SPREADS]),
    }
    known = dict(prior)
    regime = np.eye(3)[int(truth.regime[bar, 0]) + 1]
    if edge:  # on the twin the signs say nothing, and whoever knows its law knows that
        known["drift"] = np.asarray(belief, np.float64)
        known["crowding"] = np.eye(2)[int(truth.private.crowded[bar, 0])]
        known["spread"] = prior["spread"] / WIDE_BARS
        known["spread"][0] = 1.0 - 1.0 / WIDE_BARS
    low, high = WIDE_SPREAD
    wide = low + (high - low) * (np.arange(_SPREADS) + 0.5) / _SPREADS
    spreads = np.array([state.market.half_spread[bar, 0], truth.law.spread_base, *wide])
    held = int(np.argmin(np.abs(np.asarray(levels) - state.exposure)))
    chosen = {"all": known, "none": prior, "oracle": known | {"drift": regime if edge else prior["drift"]}}
    chosen |= {source: known | {source: prior[source]} for source in SOURCES}
    tables = [
        _utilities(state, costs, utility, spreads, np.asarray(levels), horizon, paths, one) for one in (seed, seed + 1)
    ]
    best = [{name: int(np.argmax(_expected(table, **one))) for name, one in chosen.items()} for table in tables]

    def value(name: str | int, given: str = "all") -> float:
        """Of a choice, chosen on one half of the scenarios and valued on the other, both ways."""
        places = [name, name] if isinstance(name, int) else [best[1][name], best[0][name]]
        rows = [_expected(table, **chosen[given]) for table in tables]
        return float(np.mean([row[place] for row, place in zip(rows, places, strict=True)]))

    return DecisionValues(
        all=value("all"),
        none=value("none"),
        hold=value(held),
        oracle=value("oracle", "oracle"),
        came=value("all", "oracle"),
        without={source: value(source) for source in SOURCES},
        exposures={name: float(levels[place % len(levels)]) for name, place in best[0].items()},
        by_limit={name: place >= len(levels) for name, place in best[0].items()},
        utilities=np.array([_expected(table, **known) for table in tables]),
    )


def _expected(table: FloatArray, drift: FloatArray, crowding: FloatArray, spread: FloatArray) -> FloatArray:
    """(2 L,): the expected utility of each exposure, at the market and by a limit."""
    expected: FloatArray = np.einsum("r,c,s,rcsa->a", drift, crowding, spread, table)
    return expected


def _utilities(
    state: State,
    costs: LinearCosts,
    utility: Utility,
    spreads: FloatArray,
    levels: FloatArray,
    horizon: int,
    paths: int,
    seed: int,
) -> FloatArray:
    """(3, 2, N, 2 L): the utility by regime, crowding, half spread and exposure, at the market and by a limit, on
    common scenarios."""
    truth = truth_of(state.market)
    found = np.empty((3, 2, len(spreads), 2 * len(levels)))

    def expected(ahead: PricePaths) -> FloatArray:
        net = _net_returns(state, ahead, costs, spreads, levels)
        return utility(net.reshape(-1, paths)).reshape(len(spreads), -1)

    # Jumps are few and large, so they are no matter of chance here: none, one up or one down, by their probabilities,
    # and at the end of each bar on as many paths as it is likely there.
    places = (np.random.default_rng((seed, 3)).permutation(paths) + 0.5) / paths
    for regime in range(3):
        belief = [np.eye(3)[regime].tolist()]
        ahead = truth.scenarios(state.market, state.bar, paths, horizon, seed, belief, jumps=False)
        without = expected(ahead)
        for crowded in (False, True):
            chance = np.array([jump_probability(crowded, bars) for bars in range(1, horizon + 1)])
            bars = np.searchsorted(chance / chance[-1], places)
            at_end = (np.arange(horizon) == bars[:, None])[:, :, None]
            up, down = (
                expected(_with_jump(ahead, np.where(at_end, 1.0 + size, 1.0))) for size in (JUMP_SIZE, -JUMP_SIZE)
            )
            found[regime, int(crowded)] = (1.0 - chance[-1]) * without + chance[-1] * (up + down) / 2.0
    return found


def _with_jump(ahead: PricePaths, jump: FloatArray) -> PricePaths:
    """`ahead` with the factors `jump` (P, B, S) at the ends of its bars."""
    open_, high, low, close = jumped(ahead.open, ahead.high, ahead.low, ahead.close, jump)
    return replace(ahead, open=open_, high=high, low=low, close=close)


def _net_returns(
    state: State, ahead: PricePaths, costs: LinearCosts, spreads: FloatArray, levels: FloatArray
) -> FloatArray:
    """(N, 2 L, P): net returns by half spread and exposure, reached at the market and by a limit at the price now."""
    price = float(state.market.close[state.bar, 0])
    open_, high, low, close = (one[:, :, 0] / price for one in (ahead.open, ahead.high, ahead.low, ahead.close))
    change = levels - state.exposure
    due = ahead.funding_rate[:, :, 0] * close  # by bar, of an exposure of one
    held = close[:, -1] - 1.0 - due.sum(axis=1)  # what an exposure of one earns that is held from now on
    cost = (costs.taker_fee + costs.spread_multiplier * spreads)[:, None] * np.abs(change)
    at_market = levels[:, None] * held - cost[:, :, None]
    traded = []  # by side, sale and purchase: what a limit of one earns, (P,)
    for side, reached, better in ((-1.0, high > 1.0, np.maximum), (1.0, low < 1.0, np.minimum)):
        filled = np.maximum.accumulate(reached, axis=1)
        first = filled.argmax(axis=1)[:, None]
        paid = np.take_along_axis(better(open_, 1.0), first, axis=1)[:, 0]
        earned = side * (close[:, -1] - paid - (filled * due).sum(axis=1)) - costs.maker_fee * paid
        traded.append(filled[:, -1] * earned)
    by_limit = state.exposure * held + np.abs(change)[:, None] * np.stack(traded)[(change > 0.0).astype(int)]
    return np.concatenate([at_market, np.broadcast_to(by_limit, at_market.shape)], axis=1)
