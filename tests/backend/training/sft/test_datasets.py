"""Data sets: the best of each question is kept, every other conversation is counted, and what is read is what was
written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.training.sft.collection import ScoredConversation
from backend.training.sft.datasets import (
    DATA_MANIFEST,
    DROP_REASONS,
    Selection,
    read_data_manifest,
    read_rows,
    select,
    write_data_set,
)
from cryptosentinel.agents.registry import ROLES
from simulator.errors import DataError
from tests.examples import tried

ANY = Selection(validation_share=0.0, seed=1)


def said(
    score: float | None, text: str = "", state: str = "0-0", role: str = "trader", valid: bool = True
) -> ScoredConversation:
    messages = [{"role": "assistant", "content": text or str(score)}] if valid else []
    return ScoredConversation(role, "scripted", state, "AAAUSDT", 7, 0.5, "AAAUSDT long 0.5", 0, valid, score, messages)


@pytest.mark.parametrize(
    ("group", "selection", "kept", "dropped"),
    [
        ([said(0.2), said(0.9), said(0.4)], ANY, [0.9], {"not_best": 2}),
        ([said(0.5, "a"), said(0.5, "b")], ANY, [0.5], {"not_best": 1}),
        ([said(0.5, "a"), said(0.5, "a")], ANY, [0.5], {"duplicate": 1}),
        ([said(None), said(0.3), said(None, valid=False)], ANY, [0.3], {"unscored": 1, "invalid": 1}),
        ([said(0.2), said(0.4)], ANY, [0.4], {"not_best": 1}),
        ([said(0.25), said(0.75)], ANY, [0.75], {"not_best": 1}),
        ([said(0.2, state="0-0"), said(0.1, state="0-1")], ANY, [0.2, 0.1], {}),
        ([said(0.2, "a", state="0-0"), said(0.2, "a", state="0-1")], ANY, [0.2, 0.2], {}),
        ([said(0.2), replace(said(0.1), question="AAAUSDT short 1.0")], ANY, [0.2, 0.1], {}),
        ([], ANY, [], {}),
    ],
)
def test_the_best_of_each_question_is_kept(
    group: list[ScoredConversation], selection: Selection, kept: list[float], dropped: dict[str, int]
) -> None:
    rows, counts = select(group, selection)
    assert [row.score for row in rows] == kept
    assert {reason: counts["trader"][reason] for reason in DROP_REASONS if counts["trader"][reason]} == dropped


def test_of_equals_the_earliest_is_kept_and_the_margin_is_over_distinct_conversations() -> None:
    rows, _ = select([said(0.4, "a"), said(0.6, "b"), said(0.6, "c"), said(0.4, "a")], ANY)
    assert rows[0].messages[0]["content"] == "b"
    assert rows[0].margin == pytest.approx(0.6 - (0.4 + 0.6 + 0.6) / 3)


SAID = st.builds(
    said,
    score=st.sampled_from([None, 0.1, 0.5, 0.5, 0.9]),
    text=st.sampled_from(["", "a", "b"]),
    state=st.sampled_from([f"0-{n}" for n in range(9)]),
    role=st.sampled_from(list(ROLES)),
    valid=st.booleans(),
)


@tried(100)
@given(st.lists(SAID, max_size=60), st.sampled_from([0.0, 0.3, 1.0]))
def test_every_conversation_has_one_fate_and_every_state_one_split(
    group: list[ScoredConversation], share: float
) -> None:
    rows, counts = select(group, replace(ANY, validation_share=share))
    for role, count in counts.items():
        assert count["collected"] == sum(one.role == role for one in group)
        assert count["collected"] == count["kept"] + sum(count[reason] for reason in DROP_REASONS)
        assert count["kept"] == count["train"] + count["validation"] == sum(row.role == role for row in rows)
    splits: dict[str, set[str]] = {}
    for row in rows:
        splits.setdefault(row.state, set()).add(row.split)
    assert all(len(split) == 1 for split in splits.values())
    if share in (0.0, 1.0):
        assert {row.split for row in rows} <= {"validation" if share else "train"}
    assert len({(row.role, row.state, row.question) for row in rows}) == len(rows)


def test_schemas_are_in_the_rows_where_the_prompt_has_them() -> None:
    rows, _ = select([replace(said(0.5), tools=ROLES["trader"].schemas)], ANY)
    assert rows[0].schemas() == list(ROLES["trader"].schemas)
    assert select([said(0.5)], ANY)[0][0].schemas() is None


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    group = [said(0.1 * n, f"é\n<|im_end|>{n}", f"0-{n}", role) for n in range(4) for role in ROLES]
    rows, counts = select(group, replace(ANY, validation_share=0.5))
    write_data_set(tmp_path / "data", rows, {"counts": counts, "seed": 1})
    assert read_data_manifest(tmp_path / "data")["counts"] == counts
    for role in ROLES:
        own = [row for row in rows if row.role == role]
        assert read_rows(tmp_path / "data", role) == own


def test_a_role_without_rows_reads_as_none(tmp_path: Path) -> None:
    write_data_set(tmp_path, select([said(0.5)], ANY)[0], {})
    assert read_rows(tmp_path, "manager") == []


@pytest.mark.parametrize(
    "harm",
    [
        lambda folder: (folder / "trader.parquet").write_bytes(b"something else"),
        lambda folder: (folder / "trader.parquet").unlink(),
        lambda folder: (folder / DATA_MANIFEST).unlink(),
        lambda folder: (folder / DATA_MANIFEST).write_text("{"),
        lambda folder: (folder / DATA_MANIFEST).write_text("[]"),
        lambda folder: (folder / DATA_MANIFEST).write_text('{"format": 99, "sha256": {}}'),
    ],
)
def test_a_damaged_folder_is_refused_with_a_way_out(tmp_path: Path, harm: Callable[[Path], object]) -> None:
    write_data_set(tmp_path, select([said(0.5)], ANY)[0], {})
    harm(tmp_path)
    with pytest.raises(DataError, match=r"collect again|give the folder"):
        read_rows(tmp_path, "trader")
