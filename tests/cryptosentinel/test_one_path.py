"""Backtest and paper session are played by the same lines: `play` does not know which it has."""

import ast
import inspect
from typing import get_type_hints

from backend.paper.parity import ReplayedSession
from backend.paper.session import PaperSession
from cryptosentinel import episode
from simulator.backtest.run import BacktestRun

MEMBERS = {name for name in vars(episode.TradingSession) if not name.startswith("_")}


def test_play_asks_for_no_kind_and_uses_nothing_but_the_protocol() -> None:
    tree = ast.parse(inspect.getsource(episode))
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not names & {"isinstance", "hasattr", "getattr", "type", "BacktestRun", "PaperSession"}
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "run"
    }
    assert used <= MEMBERS
    assert get_type_hints(episode.play)["run"] is episode.TradingSession


def test_each_session_has_all_members() -> None:
    for kind in (BacktestRun, PaperSession, ReplayedSession):
        assert {*dir(kind), "window"} >= MEMBERS, kind
