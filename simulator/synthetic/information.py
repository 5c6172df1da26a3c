"""What each source of knowledge of a private market is worth for one decision, by construction.

A decision is one exposure for the horizon, reached at the next open at the market. Its value is an expected utility u
over scenarios, given what is known. What is hidden are the drift's regime, the crowding and the spread at the next
open; their chains are independent of one another, so the posterior is a product, and a source that is lacking has the
stationary law of its chain in its place. With a(E) the best decision given the evidence E,

    value(E) = u(a(E) | all evidence),     private value of a source X = value(all) - value(all but X),

which is the value of information (Howard 1966). Drift is known as `simulator.synthetic.beliefs` can know it from
prices, headlines and funding; crowding and spread as they are. Volatility and the funding that is due count as known
to all. The best of several decisions on some scenarios is partly the luckiest, so it is chosen on one set of scenarios
and valued on another, and the other way round. Decisions are market orders: limits, whose fills do not depend on the
spread, would be cheaper where it is wide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol, get_args

import numpy as np

from simulator.arrays import FloatArray
from simulator.errors import DataError
from simulator.market.market import Market
from simulator.synthetic.oracle import LinearCosts
from simulator.synthetic.private import (
    CROWD_SHARE,
    JUMP_SIZE,
    WIDE_BARS,
    WIDE_SHARE,
    WIDE_SPREAD,
    jump_probability,
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
    by "all", "none", "oracle" and source. `came` is what the best decision given all evidence earns given the regime
    that was there: on average over states the same as `all`, and no decision that knows no more earns more.
    `utilities` (2, L) are those of each exposure given all evidence, on either half of the scenarios."""

    all: float
    none: float
    hold: float
    oracle: float
    came: float
    without: dict[KnowledgeSource, float]
    exposures: dict[str, float]
    utilities: FloatArray = field(compare=False, repr=False)

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
        exposures={name: float(levels[place]) for name, place in best[0].items()},
        utilities=np.array([_expected(table, **known) for table in tables]),
    )


def _expected(table: FloatArray, drift: FloatArray, crowding: FloatArray, spread: FloatArray) -> FloatArray:
    """(L,): the expected utility of each exposure."""
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
    """(3, 2, N, L): the utility by regime, crowding, half spread and exposure, on common scenarios."""
    truth, close = truth_of(state.market), float(state.market.close[state.bar, 0])
    found = np.empty((3, 2, len(spreads), len(levels)))
    traded = np.abs(levels - state.exposure)
    price = costs.taker_fee + costs.spread_multiplier * spreads
    # Jumps are few and large, so they are no matter of chance here: none, one up or one down, by their probabilities.
    factors = (1.0, 1.0 + JUMP_SIZE, 1.0 - JUMP_SIZE)
    chances = [jump_probability(crowded, horizon) for crowded in (False, True)]
    weights = np.array([[1.0 - one, one / 2.0, one / 2.0] for one in chances])
    for regime in range(3):
        belief = [np.eye(3)[regime].tolist()]
        ahead = truth.scenarios(state.market, state.bar, paths, horizon, seed, belief, jumps=False)
        move = ahead.close[:, -1, 0] / close
        paid = (ahead.funding_rate[:, :, 0] * ahead.close[:, :, 0] / close).sum(axis=1)
        by_jump = []
        for factor in factors:
            net = levels[None, :, None] * (move * factor - 1.0 - paid) - (price[:, None] * traded)[:, :, None]
            by_jump.append(utility(net.reshape(-1, paths)).reshape(len(spreads), len(levels)))
        found[regime] = np.einsum("cj,jsa->csa", weights, np.stack(by_jump))
    return found
