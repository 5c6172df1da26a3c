"""Which set of parameters is tried next: points that fill the ranges evenly, or a sequential optimiser.

`halton` is a Halton sequence (Halton 1960), which knows nothing of results. `tpe` is the tree-structured Parzen
estimator (Bergstra, Bardenet, Bengio, Kégl, "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011) of Optuna:
after ten sets it proposes where the better ones lie.

Both are functions of their seed and of the scores that they were told, in that order. So a search that was killed asks
and tells again what it had asked and told, and goes on as if nothing had happened.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal, Protocol

from simulator.errors import UserError

Sampler = Literal["halton", "tpe"]
SAMPLERS: tuple[Sampler, ...] = ("halton", "tpe")
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)
MOST_DIMENSIONS = len(_PRIMES)
_LEFT_OUT = 20  # first points of the sequence, which lie on a line in high dimensions
_STEADY = 10  # sets before the optimiser uses what it was told: Optuna's default


@dataclass(frozen=True)
class Dimension:
    """A number that is searched, from `low` to `high`, both included: whole or not, logarithmic where both are above
    0."""

    name: str
    low: float
    high: float
    whole: bool

    @property
    def logarithmic(self) -> bool:
        """Whether twice as much is as far everywhere."""
        return self.low > 0.0

    def at(self, place: float) -> float:
        """The value at a `place` from 0 (low) to 1 (high)."""
        if self.logarithmic:
            return self._rounded(self.low * (self.high / self.low) ** place)
        return self._rounded(self.low + (self.high - self.low) * place)

    def text(self, value: float) -> str:
        """The value as it is written in a set: whole, or with four digits."""
        return str(round(value)) if self.whole else f"{value:.4g}"

    def _rounded(self, value: float) -> float:
        return float(round(value)) if self.whole else value


@dataclass(frozen=True)
class Proposal:
    """A set to try: its number among all that were proposed, and a value for each dimension."""

    number: int
    values: Mapping[str, float]


class Proposals(Protocol):
    """Proposes sets, and is told what became of them."""

    def ask(self) -> Proposal:
        """The next set. It may be one that was proposed before."""

    def tell(self, proposal: Proposal, score: float | None) -> None:
        """What became of a proposed set: its score, the higher the better; None where it cannot be tried."""


def proposals_of(sampler: Sampler, dimensions: Sequence[Dimension], seed: int) -> Proposals:
    """Proposals by the name of the sampler. Raises `UserError` where a package is not installed, or there are too many
    dimensions."""
    if len(dimensions) > MOST_DIMENSIONS:
        raise UserError(f"{len(dimensions)} parameters are too many to search: {MOST_DIMENSIONS} at most")
    if sampler == "tpe":
        return _Tpe(dimensions, seed)
    return _Halton(dimensions)


def sampler_version(sampler: Sampler) -> str:
    """What decides the order of the sets besides the seed: the version of Optuna, or nothing. Raises `UserError` where
    it is not installed."""
    if sampler != "tpe":
        return sampler
    require_optuna()
    return f"{sampler}, Optuna {version('optuna')}"


def require_optuna() -> None:
    """Raise `UserError` where the sequential optimiser is not installed."""
    if importlib.util.find_spec("optuna") is None:
        raise UserError(
            "--sampler tpe needs optuna, which is not installed: pip install 'cryptosentinel[search]', or leave it out "
            "to draw sets evenly"
        )


class _Halton:
    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        self._dimensions = dimensions
        self._asked = 0

    def ask(self) -> Proposal:
        point = [_place(base, self._asked + _LEFT_OUT) for base in _PRIMES[: len(self._dimensions)]]
        values = {one.name: one.at(place) for one, place in zip(self._dimensions, point, strict=True)}
        self._asked += 1
        return Proposal(self._asked - 1, values)

    def tell(self, proposal: Proposal, score: float | None) -> None:
        """Changes nothing."""


def _place(base: int, index: int) -> float:
    """The digits of `index` behind the point, in reverse."""
    place, scale = 0.0, 1.0
    while index:
        scale /= base
        index, digit = divmod(index, base)
        place += scale * digit
    return place


class _Tpe:
    """Optuna's sampler. Sets that are being tried count as bad ones meanwhile, so that those side by side differ."""

    def __init__(self, dimensions: Sequence[Dimension], seed: int) -> None:
        require_optuna()
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        with warnings.catch_warnings():
            # Of `multivariate`: it is marked as experimental, and pairs of parameters are what most searches are about.
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                seed=seed, n_startup_trials=_STEADY, multivariate=True, constant_liar=True
            )
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._failed = optuna.trial.TrialState.FAIL
        self._space: dict[str, Any] = {
            one.name: optuna.distributions.IntDistribution(int(one.low), int(one.high), log=one.logarithmic)
            if one.whole
            else optuna.distributions.FloatDistribution(one.low, one.high, log=one.logarithmic)
            for one in dimensions
        }

    def ask(self) -> Proposal:
        trial = self._study.ask(self._space)
        return Proposal(trial.number, {name: float(value) for name, value in trial.params.items()})

    def tell(self, proposal: Proposal, score: float | None) -> None:
        if score is None or not math.isfinite(score):
            self._study.tell(proposal.number, state=self._failed)
        else:
            self._study.tell(proposal.number, score)
