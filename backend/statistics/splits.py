"""Divisions of a history into bars to learn from and bars to test on, none of which knows the other.

A bar's label, what a decision at its close is judged by, reaches `horizon` bars on. So a training bar is left out
(purged) where its label would reach into a test part, and after a test part a further `embargo` of bars is left out,
since what follows a test window still looks like it (López de Prado, "Advances in Financial Machine Learning", 2018,
chapter 7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from simulator.errors import DataError

BarRange = tuple[int, int]  # [start, stop)
_MOST_COMBINATIONS = 1_000


@dataclass(frozen=True)
class TrainTest:
    """Ranges of bars to learn from, in order, and the one tested on: of a combination the first and last of several,
    which `tests` has apart."""

    train: tuple[BarRange, ...]
    tests: tuple[BarRange, ...]

    @property
    def test(self) -> BarRange:
        """The only test range. Raises ValueError where there are several."""
        [test] = self.tests
        return test


def walk_forward(
    bars: int, folds: int, horizon: int, *, anchored: bool = False, first_share: float = 0.5
) -> list[TrainTest]:
    """`folds` tests that follow each other to the end of `bars`, each learnt from the bars before it.

    The first one begins at `first_share` of the bars. With `anchored` the bars to learn from begin at 0 and grow;
    otherwise they are rolling: as many as those of the first. They end a horizon before the test. Raises `DataError`
    where a fold would have no bar.
    """
    if folds < 1 or not 0.0 < first_share < 1.0:
        raise ValueError("walk-forward needs a fold and a first share between 0 and 1")
    begin = int(bars * first_share)
    length = (bars - begin) // folds
    if length < 1 or begin - horizon < 1:
        raise DataError(
            f"{bars} bars are too few for {folds} walk-forward folds with a horizon of {horizon} bars: use fewer folds "
            "or more bars"
        )
    found = []
    for fold in range(folds):
        start = begin + fold * length
        stop = bars if fold == folds - 1 else start + length
        found.append(TrainTest(((0 if anchored else start - begin, start - horizon),), ((start, stop),)))
    return found


def purged(bars: int, tests: Sequence[BarRange], horizon: int, embargo: int = 0) -> tuple[BarRange, ...]:
    """The ranges of bars outside of `tests` (in order, without overlap) whose labels reach into none of them, less an
    embargo behind each."""
    ranges, place = [], 0
    for start, stop in (*tests, (bars + horizon, bars)):
        if min(start - horizon, bars) > place:
            ranges.append((place, min(start - horizon, bars)))
        place = stop + embargo
    return tuple(ranges)


def purged_folds(bars: int, folds: int, horizon: int, embargo: int = 0) -> list[TrainTest]:
    """Each of `folds` equal parts tested once, learnt from all others, purged and embargoed."""
    return combinatorial(bars, folds, 1, horizon, embargo)


def combinatorial(bars: int, groups: int, tested: int, horizon: int, embargo: int = 0) -> list[TrainTest]:
    """Combinatorial purged cross-validation: every choice of `tested` out of `groups` equal parts is tested once.

    Each part is tested in comb(groups - 1, tested - 1) of them, so that as many whole paths can be put together. Raises
    `DataError` where a choice leaves nothing to learn from.
    """
    if not 0 < tested < groups or math.comb(groups, tested) > _MOST_COMBINATIONS:
        raise ValueError(f"{tested} of {groups} groups: give 1 to groups - 1, and at most {_MOST_COMBINATIONS} choices")
    edges = [bars * number // groups for number in range(groups + 1)]
    found = []
    for chosen in combinations(range(groups), tested):
        tests: list[BarRange] = []
        for number in chosen:
            if tests and tests[-1][1] == edges[number]:
                tests[-1] = (tests[-1][0], edges[number + 1])  # neighbours are one range
            else:
                tests.append((edges[number], edges[number + 1]))
        train = purged(bars, tests, horizon, embargo)
        if any(start >= stop for start, stop in tests) or not train:
            raise DataError(
                f"{bars} bars are too few for {tested} of {groups} groups with a horizon of {horizon} and an embargo "
                f"of {embargo} bars: use fewer groups or more bars"
            )
        found.append(TrainTest(train, tuple(tests)))
    return found
