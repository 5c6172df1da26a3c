"""Who gets a rank in the arena."""

from __future__ import annotations

from backend.decisions.backtest_document import BacktestDocument
from backend.reporting.comparison.teams import LEAST_TRADES_RANKED, ranking
from backend.reporting.run_summary import WindowResult


def result(window: WindowResult, total_return: float, trades: int) -> BacktestDocument:
    own = window.main_result
    metrics = {**own.metrics, "total_return": total_return, "trades": float(trades)}
    return own.model_copy(update={"metrics": metrics})


def test_a_team_that_hardly_traded_has_no_rank_and_comes_last(window: WindowResult) -> None:
    """In a falling market, who never trades has lost least."""
    ranks = ranking({
        "mute": result(window, 0.0, 0),
        "lucky": result(window, 0.5, LEAST_TRADES_RANKED - 1),
        "loses": result(window, -0.2, 40),
        "loses less": result(window, -0.1, LEAST_TRADES_RANKED),
    })  # fmt: skip
    assert list(ranks.items()) == [("loses less", 1), ("loses", 2), ("lucky", None), ("mute", None)]
