"""What is seen of a session from outside: its figures, its alerts and its health."""

from __future__ import annotations

import os
from pathlib import Path

from backend.paper.journal import entries_of
from backend.paper.monitor import METRICS, Monitor, paper_problem
from backend.store.store import Store
from tests.backend.paper import paper_scenes as scene


def figures(folder: Path) -> str:
    return (folder / METRICS).read_text()


def test_the_figures_are_a_file_and_count_on_after_a_resume(tmp_path: Path) -> None:
    with Store.open("mem://") as store:
        outcome = scene.begin(store, tmp_path)
        entries = entries_of(store, scene.RUN)
    written = figures(tmp_path).splitlines()
    label = f'session="{scene.RUN}"'
    assert f"cryptosentinel_paper_bars_total{{{label}}} {outcome.bars}" in written
    assert f"cryptosentinel_paper_fills_total{{{label}}} {outcome.fills}" in written
    assert any(line.startswith(f'cryptosentinel_paper_position{{{label},symbol="AAAUSDT"}} ') for line in written)
    again = Monitor(scene.RUN, tmp_path, entries)
    counted = again.metrics().splitlines()
    again.close()
    assert [line for line in counted if "_seconds" not in line] == [line for line in written if "_seconds" not in line]


def test_each_kind_of_alert_is_counted(tmp_path: Path) -> None:
    monitor = Monitor("paper-1", tmp_path)
    empty = {
        "bar_index": 7, "bar": {"candles": {}}, "happened": {"ledger": []}, "guard": {"flat_rule": "daily_loss"},
        "account": {"equity": 1.0, "cash": 1.0, "positions": {}}, "missed": "",
    }  # fmt: skip
    monitor.entry("bar", 1, empty)
    monitor.entry("missed", 2, {"bar_index": 8, "guard": {"flat_rule": "max_drawdown"}, "missed": "x"})
    failed = {"rule": "guard_error", "symbol": "", "detail": "the guard failed and closes all positions"}
    monitor.entry("missed", 3, {"bar_index": 8, "missed": "x", "clamps": [failed]})
    monitor.entry("control", 3, {"bar_index": 8, "what": "freeze", "requests": []})
    try:
        raise RuntimeError
    except RuntimeError:
        monitor.close()
    for what in ("loss_stop", "stale_data", "guard_shutdown", "guard_error", "kill", "session_dead"):
        assert f'alerts_total{{session="paper-1",what="{what}"}} 1' in figures(tmp_path)


def test_the_health_check_says_what_is_wrong(tmp_path: Path, store: Store) -> None:
    scene.begin(store, tmp_path)
    record = store.run(scene.RUN)  # as it was begun: running
    log = tmp_path / METRICS
    written = log.stat().st_mtime
    assert paper_problem(record, tmp_path, written + 10.0) == ""
    assert "no bar came" in paper_problem(record, tmp_path, written + 1e6)
    os.remove(log)
    assert "has not begun" in paper_problem(record, tmp_path, written)
    store.finish_run(scene.RUN, "failed", "DataError: x")
    assert "failed (DataError: x)" in paper_problem(store.run(scene.RUN), tmp_path, written)
    store.finish_run(scene.RUN, "finished", "finished")
    assert paper_problem(store.run(scene.RUN), tmp_path, written) == ""
