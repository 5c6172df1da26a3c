"""Stored documents: read exactly as written, those of former programs too, and what cannot be read is named."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.decisions import backtest_document
from backend.decisions.backtest_document import BacktestDocument, StoredBacktest, read_backtests
from backend.decisions.document import (
    ConversationDocument,
    DecisionDocument,
    GuardClamp,
    Message,
    RiskRuling,
    StoredDecision,
    TokenUsage,
    read_decisions,
)
from backend.decisions.packed_numbers import packed
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

# A decision and a result as the program before the documents had versions wrote them.
FORMER: dict[str, Any] = json.loads(Path(__file__).with_name("former_documents.json").read_text(encoding="utf-8"))

numbers = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=()), max_size=12)  # half a surrogate pair too
names = st.text(max_size=8)
orders = st.builds(
    Order, names, numbers, stop=st.none() | numbers, delay=st.integers(0, 9), reduce_only=st.booleans(), id=names
)
messages = st.builds(Message, role=st.sampled_from(["system", "user", "assistant", "tool"]), content=texts)
answers = st.dictionaries(names, st.one_of(numbers, st.integers(), names, st.none(), st.lists(st.booleans())))
usages = st.builds(
    TokenUsage,
    prompt=st.integers(0), sampled=st.integers(0), turns=st.integers(0), read=st.integers(0),
    logp=st.none() | numbers, mean_logp=st.none() | numbers, cost=numbers, dropped=st.integers(0),
)  # fmt: skip
conversations = st.builds(
    ConversationDocument,
    role=names, title=names, ordinal=st.integers(), policy_version=texts, asked=answers,
    messages=st.lists(messages, max_size=3).map(tuple), answer=st.none() | answers, problem=st.none() | texts,
    truncated=st.booleans(), usage=st.none() | usages,
)  # fmt: skip
clamps = st.builds(GuardClamp, rule=names, symbol=names, asked=numbers, allowed=numbers, detail=names)
rulings = st.builds(RiskRuling, symbol=names, side=names, asked=numbers, allowed=numbers)
documents = st.builds(
    DecisionDocument,
    symbols=st.lists(names).map(tuple),
    conversations=st.lists(conversations, max_size=2).map(tuple),
    rulings=st.lists(rulings, max_size=2).map(tuple),
    clamps=st.lists(clamps, max_size=2).map(tuple),
    orders=st.lists(orders, max_size=2).map(tuple),
    events=st.lists(texts, max_size=2).map(tuple),
    equity_before=st.none() | numbers,
    equity_after=st.none() | numbers,
    net_return=st.none() | numbers,
)


def as_read(document: dict[str, Any]) -> dict[str, Any]:
    """What comes back from the store."""
    read: dict[str, Any] = json.loads(json.dumps(document, allow_nan=False))
    return read


def held(former: Any, present: Any) -> bool:
    """Whether all that a former document says is in the present one, with the very same numbers."""
    if isinstance(former, dict):
        return isinstance(present, dict) and all(held(value, present.get(key)) for key, value in former.items())
    if isinstance(former, list):
        return len(former) == len(present) and all(map(held, former, present))
    return bool(former == present) and (not isinstance(former, float) or repr(former) == repr(float(present)))


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
    assert BacktestDocument.from_json({**stored, "version": 1, "times": long.times}, "test").times == long.times
    for name, value, reason in (
        ("times", stored["equity"], "must be i8"), ("equity", "f8:!", "cannot be read"),
        ("equity", packed([1.0, math.nan], "f8"), "not finite"), ("times", "i8:", "at least 1"),
        ("equity", packed(long.equity[:-1], "f8"), "2499 values"), ("exposure", packed([0.5], "f8"), "exposure"),
    ):  # fmt: skip
        with pytest.raises(StoreError, match=reason):
            BacktestDocument.from_json({**stored, name: value}, "test")


def test_a_result_is_what_the_simulator_made() -> None:
    document = BacktestDocument.from_json(as_read(BacktestDocument.of(episode().result).to_json()), "test")
    assert document.result().to_dict() == {**episode().result.to_dict(), "rejections": []}
    assert [one.detail for one in document.rejections] == [one.detail for one in episode().result.rejections]


def test_documents_of_the_former_program_are_read_whole() -> None:
    decision = FORMER["decision"]
    record = DecisionRecord("old", "scripted", decision["ordinal"], decision["time"], decision["document"])
    document = StoredDecision.from_record(record).document
    assert "version" not in decision["document"] and document.to_json()["version"] == 1
    assert held(decision["document"], as_read(document.to_json()))
    lines = narrate(decision_tree(document))
    assert {"desk", "manager", "market_analyst", "orders", "result"} <= {line.speaker for line in lines}
    backtest = StoredBacktest.from_record(BacktestRecord("old", "scripted", FORMER["backtest"])).document
    assert held(FORMER["backtest"], as_read(backtest.to_json())) and backtest.inference is None


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
def test_a_reason_that_a_newer_program_knows_is_kept_as_it_is() -> None:
    written = json.loads(json.dumps(FORMER["backtest"]))
    assert written["fills"]
    written["fills"][0]["reason"] = "delisted"
    for trade in written["trades"][:1]:
        trade["reason"] = "delisted"
    written["rejections"] = [
        {"bar": 3, "order": {"symbol": "A", "exposure": 0.5}, "reason": "asleep", "detail": "", "quantity": 2.0}
    ]
    read = BacktestDocument.from_json(written, "here")
    assert str(read.fills[0].reason) == "delisted" and read.rejections[0].reason == "asleep"
    assert read.rejections[0].quantity == 2.0 and BacktestDocument.from_json(as_read(read.to_json()), "here") == read


def test_a_verdict_comes_back_and_is_absent_from_older_results() -> None:
    former = BacktestDocument.from_json(FORMER["backtest"], "here")
    assert former.lookahead is None and all(one.quantity is None for one in former.rejections)
    finding = VerdictFinding("order", 2_000, 1_000, 3, "A quantity", "1.0", "2.0")
    verdict = LookaheadVerdict("look_ahead", cuts=5, with_orders=2, coverage=0.5, findings=(finding,))
    document = BacktestDocument.of(former.result(), lookahead=verdict)
    read = BacktestDocument.from_json(as_read(document.to_json()), "here")
    assert read == document and read.lookahead is not None and not read.lookahead.trusted
    assert read.lookahead.text.startswith("LOOK-AHEAD: order at ") and read.lookahead.findings[0]["cut"] == 3


def test_what_a_team_spent_has_a_new_name() -> None:
    role = {"calls": 1, "tokens": 7, "seconds": 0.5, "money": 2.0}
    spent = {**role, "roles": {"manager": role}, "exhausted": 1, "engine": {}}
    document = BacktestDocument.from_json({**FORMER["backtest"], "thinking": spent}, "test")
    assert document.inference is not None and document.inference.model_dump() == spent | {"priced": True}
    start = FORMER["backtest"]["equity"][0]
    assert document.return_after_inference == pytest.approx(document.total_return - 2.0 / start)


def test_the_oldest_decisions_are_about_one_coin() -> None:
    call = '<tool_call>\n{"name": "submit_decision", "arguments": {"positions": []}}\n</tool_call>'
    answer = {"positions": [{"symbol": "C1", "side": "long", "exposure": 0.5}]}
    manager = {"role": "manager", "messages": [{"role": "assistant", "content": call}], "answer": answer}
    tree = decision_tree(DecisionDocument.from_json({"symbol": "BTCUSDT", "conversations": [manager]}, "test"))
    assert tree.names == {"C1": "BTCUSDT"} and tree.document.orders == ()
    [conversation] = tree.document.conversations
    assert (conversation.title, conversation.usage) == ("DeepTraderManager", None)


def test_an_example_keeps_its_place() -> None:
    decision = full_decision()
    example = decision.example()
    again = type(example).from_json(as_read(example.to_json()), "test")
    assert again == example and (again.window, again.time) == (decision.backtest, decision.time)
    assert narrate(decision_tree(again)) == narrate(decision_tree(decision.document))


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "a newer version": ({"version": 2}, "versions up to 1"),
    "no version at all": ({"version": "x"}, "versions up to 1"),
    "a conversation without a role": ({"conversations": [{"messages": []}]}, "KeyError 'role'"),
    "an order that is none": ({"orders": [{"symbol": "A"}]}, "orders.0.quantity"),
    "a list for an object": ({"conversations": [[]]}, "TypeError"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_decision_that_cannot_be_read_is_named(how: str) -> None:
    document, reason = BROKEN[how]
    with Store.open("mem://") as store:
        add_backtest_run(store, "b")
        store.add_decisions([DecisionRecord("b", "scripted", 3, 5, document)])
        for read in (read_decisions, summarise):
            with pytest.raises(UserError, match="decision 3 of scripted in run b") as caught:
                read(store, "b")
            assert reason in str(caught.value)


@pytest.mark.parametrize("document", [{}, {"version": 9}, {**FORMER["backtest"], "metrics": {}}])
def test_a_backtest_that_cannot_be_read_is_named(document: dict[str, Any]) -> None:
    with Store.open("mem://") as store:
        add_backtest_run(store, "b")
        store.add_backtest(BacktestRecord("b", "hold", document))
        for read in (read_backtests, summarise):
            with pytest.raises(UserError, match="backtest hold in run b"):
                read(store, "b")


def test_an_example_that_cannot_be_read_is_named() -> None:
    with Store.open("mem://") as store:
        add_demo_run(store, "d")
        store.add_evaluation(EvaluationRecord("d", "story", 30, {"orders": 7}))
        with pytest.raises(UserError, match="evaluation story in run d"):
            _ = summarise(store, "d").example


def test_a_store_of_the_former_program_gives_the_same_page() -> None:
    former = {key: value for key, value in as_read(full_document().to_json()).items() if key != "version"}
    assert DecisionDocument.from_json(former, "test") == full_document()
