"""A stored run in which every text that a record can hold is hostile."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

from backend.decisions.backtest_document import write_backtest
from backend.decisions.document import DecisionDocument, StoredDecision, write_decisions
from backend.store.records import EvaluationRecord, MetricRecord, RunRecord, TrajectoryRecord
from backend.store.store import Store
from tests.stored_runs import episode, full_document, small_market

# Clears the screen, sets the window's title, writes a link, turns the line round, is markup of Rich, HTML and Markdown.
HOSTILE = (
    "a\x1b[2J\x1b]0;title\x07\x1b]8;;http://x\x1b\\b\x9b31m\r\x08\u202egnp\u2066\u200b "
    "[bold red]m[/bold red] [link=x]l[/] :smile: <script>alert(1)</script><img src=x onerror=y> "
    "**b** [t](http://x) ![p](http://x/p) `c` \u2028"
)
RUN = "run-1"


def dangerous(text: str) -> list[str]:
    """The characters that a terminal obeys or hides; new lines are the program's own."""
    return sorted({hex(ord(one)) for one in text if one != "\n" and unicodedata.category(one) in ("Cc", "Cf", "Cs")})


def hostile_store(where: Path, kind: str = HOSTILE) -> None:
    """A run in which every text that a record can hold is hostile."""
    market = small_market()
    document = {
        "config": {"market": {"data": HOSTILE, "symbols": [HOSTILE]}},
        "versions": {HOSTILE: HOSTILE},
        "teams": [HOSTILE],
        "notes": [HOSTILE],
        "gaps": HOSTILE,
        "venue": {"told": HOSTILE},
        "hardware": {"device": HOSTILE},
    }
    plain = episode().result
    with Store.open(where) as store:
        store.add_run(RunRecord(RUN, kind, 1, market.content_hash, 1_700_000_000_000, document, message=HOSTILE))
        write_backtest(store, RUN, HOSTILE, plain)
        words = json.loads(json.dumps(full_document().to_json()))
        for conversation in words["conversations"]:
            conversation |= {"policy_version": HOSTILE, "problem": HOSTILE}
            for message in conversation["messages"]:
                message["content"] += HOSTILE
        words["symbols"] = [HOSTILE]
        words["clamps"] = [{"rule": HOSTILE, "symbol": HOSTILE, "asked": 1.0, "allowed": 0.0, "detail": HOSTILE}]
        ruling = {"symbol": HOSTILE, "side": HOSTILE, "asked": 1.0, "allowed": 0.0}
        words["rulings"] = [{**ruling, "verdict": HOSTILE, "ordinal": 0, "verdicts": 1}]
        hostile = DecisionDocument.from_json(words, "test")
        write_decisions(store, [StoredDecision(RUN, HOSTILE, 0, market.open_time[200].item(), hostile)])
        row = {"total_return": 0.1, "sharpe": 1.0, "max_drawdown": 0.1, "exposure": 0.5, "trades": 1.0, "costs": 0.0}
        difference = {"of": HOSTILE, "against": HOSTILE, "mean": 0.1, "ci95": [0.0, 0.2], "costs_saved": 0.0}
        result = {"windows": 2, "rows": {HOSTILE: {**row, "long_share": 1.0}}, "difference": difference}
        store.put(EvaluationRecord(RUN, HOSTILE, 0, result))
        store.put(EvaluationRecord(RUN, "summary", 0, {"verdict": HOSTILE}))
        for step in range(3):
            store.put(MetricRecord(RUN, step, {f"{HOSTILE}/reward/mean": 0.5, "team/outcome": 0.5, HOSTILE: 1.0}))
        trajectory = TrajectoryRecord(RUN, 0, 0, 0, "manager", 0, HOSTILE, (1,), (True,), (0.0,), False, reason=HOSTILE)
        store.put(trajectory)
        store.finish_run(RUN, "failed", HOSTILE)
