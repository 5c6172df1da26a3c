import importlib.util
import math
from collections.abc import Mapping

import numpy as np
import pytest

from backend.experiments.tuning import proposals
from backend.experiments.tuning.drawing import Drawing, DrawnSet
from backend.experiments.tuning.proposals import Dimension, Sampler, proposals_of, require_optuna
from simulator.errors import UserError

OPTUNA = pytest.mark.skipif(
    importlib.util.find_spec("optuna") is None,
    reason="the package optuna is absent: `python scripts/install.py search`",
)
SAMPLERS = ["halton", pytest.param("tpe", marks=OPTUNA)]
DIMENSIONS = [Dimension("rate", 1e-5, 1e-1, whole=False), Dimension("width", 2, 200, whole=True)]


def bowl(values: Mapping[str, float]) -> float:
    """Best at 1e-3 and 20."""
    return -((math.log10(values["rate"]) + 3.0) ** 2) - (math.log10(values["width"] / 20.0)) ** 2


def best_of(sampler: Sampler, count: int, seed: int) -> float:
    drawing: Drawing[str] = Drawing(DIMENSIONS, proposals_of(sampler, DIMENSIONS, seed), str)
    best = -math.inf
    while count > 0:
        drawn = drawing.next_round(min(8, count))
        for one in drawn:
            score = bowl(one.proposal.values)
            drawing.score(one, score)
            best, count = max(best, score), count - 1
    return best


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_sets_are_different_within_their_ranges_and_taken_by_their_subject(sampler: Sampler) -> None:
    def odd(text: str) -> dict[str, float]:
        values = {name: float(value) for name, _, value in (part.partition("=") for part in text.split(","))}
        if values["width"] % 2 == 0:
            raise UserError("even")
        return values

    drawing = Drawing(DIMENSIONS, proposals_of(sampler, DIMENSIONS, 1), odd)
    drawn = [one for _ in range(6) for one in drawing.next_round(8)]
    assert len({one.text for one in drawn}) == len(drawn) == 48 and drawing.refusal == "even"
    for one in drawn:
        assert 1e-5 <= one.made["rate"] <= 1e-1 and 2 <= one.made["width"] <= 200 and one.made["width"] % 2 == 1
    places = np.log([one.made["rate"] for one in drawn])
    assert places.std() > 1.0  # over the decades, not at one end


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_range_with_no_more_sets_ends_the_drawing(sampler: Sampler) -> None:
    few = [Dimension("width", 1, 5, whole=True)]
    drawing: Drawing[str] = Drawing(few, proposals_of(sampler, few, 1), str)
    drawn: list[DrawnSet[str]] = []
    while round_ := drawing.next_round(4):
        for one in round_:
            drawing.score(one, 1.0)
        drawn += round_
    assert sorted(one.text for one in drawn) == [f"width={number}" for number in range(1, 6)]


@OPTUNA
def test_what_was_told_decides_what_is_asked_and_nothing_else() -> None:
    def asked(slope: float) -> list[Mapping[str, float]]:
        source = proposals_of("tpe", DIMENSIONS, 3)
        seen: list[Mapping[str, float]] = []
        for _ in range(30):
            proposal = source.ask()
            seen.append(proposal.values)
            source.tell(proposal, slope * bowl(proposal.values))
        return seen

    assert asked(1.0) == asked(1.0)
    assert asked(1.0) != asked(-1.0)


@OPTUNA
def test_the_optimiser_comes_nearer_to_the_best_than_even_points_do() -> None:
    even = best_of("halton", 64, 0)
    assert np.median([best_of("tpe", 64, seed) for seed in range(5)]) > even


def test_without_its_package_the_sampler_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'cryptosentinel\[search\]'"):
        require_optuna()
