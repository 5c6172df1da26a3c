"""The use case optimize: a strategy with each combination of some arguments, and how much of the best is luck."""

from __future__ import annotations

import functools
import html
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from backend.builders.strategies import Make, NamedStrategy, given_strategy, named_strategy
from backend.evaluation.trials import record_trial
from backend.runs.backtest import backtest_teams, plan_backtest
from backend.runs.outcomes import BacktestOutcome
from backend.runs.requests import BacktestRequest, Observer
from backend.runs.strategy_run import play_strategy
from backend.statistics.overfitting import Overfitting, overfitting
from backend.store.run_record import new_run_id, store_at
from backend.store.store import Store
from simulator.arrays import FloatArray
from simulator.backtest.metrics import returns_of
from simulator.errors import DataError, UserError

MOST = 2_000  # combinations
_SHOWN = ("total_return", "sharpe", "max_drawdown", "exposure", "trades")
Constraint = Callable[[SimpleNamespace], bool]


@dataclass(frozen=True, repr=False)
class OptimizeOutcome:
    """A finished search. `table` has a row for each combination, the best Sharpe ratio first; `returns` (bars,
    combinations) are in the order of the table. `result` is the backtest of the best, whose interval and deflated
    Sharpe ratio count all combinations. Printed, it is the answer in a sentence and the ten best."""

    names: tuple[str, ...]
    table: pd.DataFrame
    returns: FloatArray
    result: BacktestOutcome

    @property
    def best(self) -> dict[str, Any]:
        """The arguments of the best combination."""
        first = {name: self.table[name].iloc[0] for name in self.names}
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in first.items()}

    @cached_property
    def overfitting(self) -> Overfitting | None:
        """How often the best of one half of the bars is below the median in the other half (Bailey et al. 2017); None
        where there are too few bars or combinations."""
        try:
            return overfitting(self.returns)
        except DataError:
            return None

    @property
    def sentence(self) -> str:
        """The best of how many, and how much of it is luck."""
        chosen = ", ".join(f"{name}={value}" for name, value in self.best.items())
        text = (
            f"The best of {len(self.table)} combinations is {chosen}: Sharpe ratio {self.table['sharpe'].iloc[0]:.2f}."
        )
        if self.overfitting is None:
            return f"{text} There are too few bars or combinations to tell how much of it is luck."
        return (
            f"{text} The probability of overfitting is {self.overfitting.probability:.0%}: how often the best of one "
            "half of the bars is below the median in the other half."
        )

    def __repr__(self) -> str:
        return f"{self.sentence}\n\n{self.table.head(10).to_string(float_format='{:.3f}'.format, index=False)}"

    def _repr_html_(self) -> str:
        table = self.table.head(10).to_html(float_format="{:.3f}".format, index=False)
        return f"<p>{html.escape(self.sentence)}</p>{table}"


def optimize_strategy(
    strategy: str | type | Callable[..., Any],
    ranges: Mapping[str, Sequence[Any]],
    constraint: Constraint | None,
    request: BacktestRequest,
    store: Store | str | Path,
    runs: Path,
    observer: Observer,
) -> OptimizeOutcome:
    """Play `strategy` with each combination of the values in `ranges` that the `constraint` accepts, and the best of
    them as a backtest of its own, whose trials are all combinations.

    Raises `UserError` for an argument that the strategy does not have, and for no combination or more than `MOST`.
    """
    combinations = _combinations(ranges, constraint)
    sets = {_text(one): _with(strategy, one) for one in combinations}
    plan = plan_backtest(replace(request, teams=tuple(sets)), sets)
    results, run = [], new_run_id("optimize")
    with store_at(store) as opened:
        for number, one in enumerate(plan.subjects):
            assert isinstance(one, NamedStrategy)
            observer.progress("combinations", number, len(sets))
            played = play_strategy(one, plan.market, plan.window, plan.account.terms)
            results.append(played.result)
            record_trial(
                opened, run, one, plan.config, plan.market, plan.window.start, plan.window.stop,
                every=plan.window.decide_every, seed=plan.seed,
            )  # fmt: skip
        observer.progress("combinations", len(sets), len(sets))
        table = pd.DataFrame(
            [{**one, **{name: result.metrics[name] for name in _SHOWN}}
             for one, result in zip(combinations, results, strict=True)]
        )  # fmt: skip
        order = table["sharpe"].to_numpy().argsort(kind="stable")[::-1]
        best = list(sets)[order[0]]
        again = {best: _with(strategy, combinations[order[0]])}
        result = backtest_teams(replace(request, teams=(best,)), opened, runs, observer, again)
    returns = np.stack([returns_of(np.asarray(one.equity, np.float64)) for one in results], axis=1)
    return OptimizeOutcome(tuple(ranges), table.iloc[order].reset_index(drop=True), returns[:, order], result)


def _combinations(ranges: Mapping[str, Sequence[Any]], constraint: Constraint | None) -> list[dict[str, Any]]:
    """Each combination of the values that the constraint accepts."""
    for name, values in ranges.items():
        if isinstance(values, str) or not hasattr(values, "__iter__") or not len(list(values)):
            raise UserError(f"{name} = {values!r}: give the values to try, such as range(5, 30, 5) or a list")
    every = [dict(zip(ranges, values, strict=True)) for values in itertools.product(*ranges.values())]
    kept = [one for one in every if constraint is None or constraint(SimpleNamespace(**one))]
    if not ranges or not kept:
        raise UserError("no combination is left to try: name arguments with their values, and widen the constraint")
    if len(kept) > MOST:
        raise UserError(f"{len(kept):,} combinations are more than {MOST:,}: take fewer values, or a constraint")
    return kept


def _with(strategy: str | type | Callable[..., Any], arguments: Mapping[str, Any]) -> NamedStrategy:
    """A strategy with arguments: those of its class or function, or else attributes of its class."""
    own = named_strategy(strategy) if isinstance(strategy, str) else given_strategy(strategy)
    name, code = _text(arguments), own.code
    taken = inspect.signature(own.make).parameters
    if arguments.keys() <= taken.keys():
        make: Make = functools.partial(own.make, **arguments)
    elif isinstance(code, type) and all(hasattr(code, one) for one in arguments):
        make = given_strategy(type(code.__name__, (code,), {"__module__": code.__module__, **arguments})).make
    else:
        missing = [one for one in arguments if one not in taken and not hasattr(code, one)]
        raise UserError(f"{own.name} has no argument {', '.join(missing)}; it has {', '.join(taken) or 'none'}")
    return NamedStrategy(name, make, None if own.load is None else lambda: make, code)


def _text(arguments: Mapping[str, Any]) -> str:
    return ",".join(f"{name}={value}" for name, value in arguments.items())
