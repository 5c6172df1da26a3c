"""What the last `paper report` of a session found, kept in the store for who only looks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from backend.paper.parity import Parity
from backend.paper.review.comparison import ShadowComparison
from backend.paper.review.drift import DriftReport
from backend.store.records import EvaluationRecord
from backend.store.store import Store

_NAME = "paper_report"


@dataclass(frozen=True)
class LastReport:
    """The sentences of a report that was made at `at` (ms); empty for what was not asked for. `differences` are those
    of the parity, None where it was not checked."""

    at: int
    differences: int | None
    parity: tuple[str, ...]
    drift: tuple[str, ...]
    comparison: str


def keep_report(
    store: Store, run: str, parity: Parity | None, drift: DriftReport | None, comparison: ShadowComparison | None
) -> None:
    """Keep what a report of the session `run` found, in the place of a former one."""
    document = {
        "at": int(time.time() * 1000),
        "differences": None if parity is None else len(parity.differences),
        "parity": [] if parity is None else [parity_sentence(parity), *parity.differences[:20]],
        "drift": [] if drift is None else drift_sentences(drift),
        "comparison": "" if comparison is None else comparison.sentence(),
    }
    store.add_evaluation(EvaluationRecord(run, _NAME, 0, document))


def last_report(store: Store, run: str) -> LastReport | None:
    """The newest report of the session `run`; None where none was made."""
    for record in store.evaluations(run):
        if record.name == _NAME:
            kept = record.result
            differences = kept.get("differences")
            return LastReport(
                int(kept["at"]), None if differences is None else int(differences), _words(kept["parity"]),
                _words(kept["drift"]), str(kept["comparison"]),
            )  # fmt: skip
    return None


def parity_sentence(parity: Parity) -> str:
    """What was compared, in words."""
    return (
        f"parity: {parity.bars} bars, {parity.decisions} decisions and {parity.fills} fills compared with the backtest "
        f"of the recorded inputs: {len(parity.differences)} differences"
    )


def drift_sentences(drift: DriftReport) -> list[str]:
    """Each week beside what was expected, or what is missing for that."""
    sentences = [f"drift: {drift.missing}"] if drift.missing else []
    for week in drift.weeks:
        against = f"against {drift.expected_from} decisions of the backtest before the session, 95 % intervals"
        sentences.append(f"drift, {week}: {week.missing or against}")
        sentences += [f"  {row.sentence()}" for row in week.rows]
    return sentences


def _words(values: Sequence[object]) -> tuple[str, ...]:
    return tuple(str(value) for value in values)
