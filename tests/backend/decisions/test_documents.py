"""Stored documents: read exactly as written; what cannot be read is refused by name."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.decisions import backtest_document
from backend.decisions.backtest_document import (
    BacktestDocument,
    InferenceCost,
    RoleInference,
    packed,
    read_backtests,
    unpacked,
)
from backend.decisions.document import (
    ConversationDocument,
    DecisionDocument,
    GuardClamp,
    Message,
    RiskRuling,
    StoredCall,
    TokenUsage,
    read_decisions,
)
from backend.decisions.tree import decision_tree
from backend.reporting.decision_narrative import narrate
from backend.reporting.run_summary import summarise
from backend.store.errors import StoreError
from backend.store.records import BacktestRecord, DecisionRecord, EvaluationRecord
from backend.store.store import Store
from simulator.checks.verdict import LookaheadVerdict, VerdictFinding
from simulator.errors import UserError
from simulator.exchange.orders import Order
from simulator.tables import EARLIEST, LATEST
from tests.stored_runs import add_backtest_run, add_demo_run, episode, full_decision, full_document

numbers = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=()), max_size=12)  # half a surrogate pair too
names = st.text(max_size=8)
orders = st.builds(
    Order, names, numbers, stop=st.none() | numbers, delay=st.integers(0, 9), reduce_only=st.booleans(), id=names
)
answers = st.dictionaries(names, st.one_of(numbers, st.integers(), names, st.none(), st.lists(st.booleans())))
calls = st.builds(StoredCall, tool=texts, arguments=answers, opened=st.integers(0, 3), code=texts, detail=texts)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=texts,
    call=st.none() | calls,
)
usages = st.builds(
    TokenUsage,
    prompt=st.integers(0), sampled=st.integers(0), turns=st.integers(0), read=st.integers(0),
    logp=st.none() | numbers, mean_logp=st.none() | numbers, cost=numbers, dropped=st.integers(0),
)  # fmt: skip
conversations = st.builds(
    ConversationDocument,
    role=names, ordinal=st.integers(), policy_version=texts, asked=answers,
    messages=st.lists(messages, max_size=3).map(tuple), answer=st.none() | answers, problem=st.none() | texts,
    truncated=st.booleans(), usage=usages,
)  # fmt: skip
clamps = st.builds(GuardClamp, rule=names, symbol=names, asked=numbers, allowed=numbers, detail=names)
rulings = st.builds(
    RiskRuling,
    symbol=names,
    side=names,
    asked=numbers,
    allowed=numbers,
    verdict=names,
    ordinal=st.integers(),
    verdicts=st.integers(),
)
documents = st.builds(
    DecisionDocument,
    symbols=st.lists(names).map(tuple),
    conversations=st.lists(conversations, max_size=2).map(tuple),
    rulings=st.lists(rulings, max_size=2).map(tuple),
    clamps=st.lists(clamps, max_size=2).map(tuple),
    orders=st.lists(orders, max_size=2).map(tuple),
    equity_before=st.none() | numbers,
    equity_after=st.none() | numbers,
    net_return=st.none() | numbers,
)


def as_read(document: dict[str, Any]) -> dict[str, Any]:
    """What comes back from the store."""
    read: dict[str, Any] = json.loads(json.dumps(document, allow_nan=False))
    return read


@given(documents)
def test_a_decision_comes_back_exactly(document: DecisionDocument) -> None:
    stored = as_read(document.to_json())
    again = DecisionDocument.from_json(stored, "test")
    assert again == document
    assert json.dumps(as_read(again.to_json())) == json.dumps(stored)


@given(st.lists(numbers, min_size=1, max_size=9), st.dictionaries(names, numbers), st.data())
def test_a_backtest_comes_back_exactly(equity: list[float], metrics: dict[str, float], data: st.DataObject) -> None:
    length = 1 + len(equity)
    document = BacktestDocument.of(episode().result)
    exposures = st.lists(numbers, min_size=len(document.symbols), max_size=len(document.symbols))
    times = st.sets(st.integers(EARLIEST, LATEST - 1), min_size=length, max_size=length)
    changes = {
        "equity": [data.draw(st.floats(1e-6, 1e9)), *equity],
        "times": sorted(data.draw(times)),
        "exposure": data.draw(st.lists(exposures, min_size=length, max_size=length)),
        "metrics": {**metrics, "total_return": data.draw(numbers | st.integers())},
    }
    document = document.model_copy(update=changes)
    stored = as_read(document.to_json())
    again = BacktestDocument.from_json(stored, "test")
    assert again == document
    assert json.dumps(as_read(again.to_json())) == json.dumps(stored)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backtest_document, "_LONG", 1)  # its curves as bytes
        as_bytes = as_read(document.to_json())
    of_bytes = BacktestDocument.from_json(as_bytes, "test")
    assert all(isinstance(as_bytes[name], str) for name in ("times", "equity", "exposure"))
    assert of_bytes == document and json.dumps(as_read(of_bytes.to_json())) == json.dumps(stored)


def test_the_curves_of_a_long_backtest_are_stored_as_bytes_and_damaged_ones_are_refused() -> None:
    document = BacktestDocument.of(episode().result)
    start, count = document.times[0], 2_500
    long = document.model_copy(update={
        "times": list(range(start, start + count)), "equity": [1e4 + 0.1 * bar for bar in range(count)],
        "exposure": [[bar / 7] * len(document.symbols) for bar in range(count)],
    })  # fmt: skip
    stored = as_read(long.to_json())
    assert BacktestDocument.from_json(stored, "test") == long
    assert BacktestDocument.from_json({**stored, "times": long.times}, "test").times == long.times
    for name, value, reason in (
        ("times", stored["equity"], "must be i8"), ("equity", "f8:!", "cannot be read"),
        ("equity", packed([1.0, math.nan], "f8"), "not finite"), ("times", "i8:", "at least 1"),
        ("equity", packed(long.equity[:-1], "f8"), "2499 values"), ("exposure", packed([0.5], "f8"), "exposure"),
    ):  # fmt: skip
        with pytest.raises(StoreError, match=reason):
            BacktestDocument.from_json({**stored, name: value}, "test")


@given(st.lists(numbers), st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_numbers_come_back_to_the_bit(floats: list[float], integers: list[int]) -> None:
    assert repr(unpacked(packed(floats, "f8"), "f8").tolist()) == repr(floats)
    assert unpacked(packed(integers, "i8"), "i8").tolist() == integers


@given(st.text().filter(lambda text: not text.startswith("f8:")))
def test_any_other_text_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="numbers as a text"):
        unpacked(text, "f8")


def test_a_result_is_what_the_simulator_made() -> None:
    document = BacktestDocument.from_json(as_read(BacktestDocument.of(episode().result).to_json()), "test")
    assert document.result().to_dict() == {**episode().result.to_dict(), "rejections": []}
    assert [one.detail for one in document.rejections] == [one.detail for one in episode().result.rejections]


def test_a_verdict_comes_back() -> None:
    finding = VerdictFinding("order", 2_000, 1_000, 3, "A quantity", "1.0", "2.0")
    verdict = LookaheadVerdict("look_ahead", cuts=5, with_orders=2, coverage=0.5, findings=(finding,))
    document = BacktestDocument.of(episode().result, lookahead=verdict)
    read = BacktestDocument.from_json(as_read(document.to_json()), "here")
    assert read == document and read.lookahead is not None and not read.lookahead.trusted
    assert read.lookahead == verdict


def test_what_inference_cost_is_taken_from_the_return() -> None:
    role = RoleInference(calls=1, tokens=7, seconds=0.5, money=2.0)
    spent = InferenceCost(**role.model_dump(), roles={"manager": role}, engine={})
    document = BacktestDocument.of(episode().result, spent)
    assert document.return_after_inference == pytest.approx(document.total_return - 2.0 / document.equity[0])


def test_an_example_keeps_its_place() -> None:
    decision = full_decision()
    example = decision.example()
    again = type(example).from_json(as_read(example.to_json()), "test")
    assert again == example and (again.window, again.time) == (decision.backtest, decision.time)
    assert narrate(decision_tree(again)) == narrate(decision_tree(decision.document))


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a conversation without a role": ({"conversations": [{"messages": []}]}, "conversations.0.role"),
    "an order without a quantity": ({"orders": [{"symbol": "A"}]}, "orders.0.quantity"),
    "a list for an object": ({"conversations": [[]]}, "conversations.0"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_decision_that_cannot_be_read_is_named(how: str) -> None:
    changes, reason = BROKEN[how]
    document = {**as_read(full_document().to_json()), **changes}
    with Store.open("mem://") as store:
        add_backtest_run(store, "b")
        store.put(DecisionRecord("b", "scripted", 3, 5, document))
        for read in (read_decisions, summarise):
            with pytest.raises(UserError, match="decision 3 of scripted in run b") as caught:
                read(store, "b")
            assert re.search(reason, str(caught.value))
        assert [one.document for one in store.decisions("b") if one.ordinal == 3 and one.time == 5] == [document]


@pytest.mark.parametrize("changes", [{"metrics": {}}, {"times": None}])
def test_a_backtest_that_cannot_be_read_is_named(changes: dict[str, Any]) -> None:
    document = {**as_read(BacktestDocument.of(episode().result).to_json()), **changes}
    with Store.open("mem://") as store:
        add_backtest_run(store, "b")
        store.put(BacktestRecord("b", "hold", document))
        for read in (read_backtests, summarise):
            with pytest.raises(UserError, match="backtest hold in run b"):
                read(store, "b")


def test_an_example_that_cannot_be_read_is_named() -> None:
    with Store.open("mem://") as store:
        add_demo_run(store, "d")
        store.put(EvaluationRecord("d", "story", 30, {"orders": 7}))
        with pytest.raises(UserError, match="evaluation story in run d"):
            _ = summarise(store, "d").example
