"""A decision told line by line: in order, in plain words, with real names, and whatever models said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.decisions.tree import DecisionTree, decision_tree
from backend.reporting.decision_narrative import consequences, conversation_lines, headline, narrate
from cryptosentinel.protocol.tool_calls import render_call
from tests.stored_runs import decision_of, full_document


def tree_of(document: dict[str, Any]) -> DecisionTree:
    return decision_tree(decision_of(**document))


def manager_says(*messages: str, problem: str | None = None) -> DecisionTree:
    """A decision in which the manager says `messages`, each answered by a tool but the last."""
    turns: list[dict[str, str]] = [{"role": "system", "content": "s"}, {"role": "user", "content": "equity 1.00"}]
    for message in messages:
        turns += [{"role": "assistant", "content": message}, {"role": "tool", "content": "{}"}]
    return tree_of({"conversations": [{"role": "manager", "messages": turns[:-1], "problem": problem}]})


def test_consultations_stand_between_question_and_decision() -> None:
    lines = conversation_lines(decision_tree(full_document()))
    speakers = [line.speaker for line in lines if line.speaker != "tool"]
    assert speakers == [
        "desk", "manager", "market_analyst", "manager", "risk_analyst", "manager", "trader", "manager",
    ]  # fmt: skip
    assert [line.depth for line in lines if line.speaker == "manager"] == [0, 0, 0, 0]
    assert {line.depth for line in lines if line.speaker in ("market_analyst", "risk_analyst", "trader")} == {1}
    looked_up = [line.title for line in lines if line.speaker == "tool"]
    assert looked_up[:3] == [f"MarketAnalyst looks up {tool}" for tool in ("get_trend", "get_news", "get_funding")]


def test_neutral_names_are_resolved() -> None:
    document = full_document()
    symbol = str(document.conversations[1].asked["symbol"])
    lines = conversation_lines(decision_tree(document))
    assert f"{symbol} (shown to the team as C" in lines[0].text
    assert all("C1" not in line.text and "C2" not in line.text for line in lines[1:])
    assert symbol in headline(decision_tree(document))


def test_exact_words_are_kept() -> None:
    document = full_document()
    raw = "\n".join(line.raw for line in conversation_lines(decision_tree(document)))
    for conversation in document.conversations:
        for message in conversation.messages:
            if message.role == "assistant":
                assert message.content in raw


def test_an_answer_that_cannot_be_used_is_said_to_be_none() -> None:
    tree = manager_says("I would rather buy", problem="no_call: the turn is not exactly one <tool_call>")
    *_, said, problem = conversation_lines(tree)
    assert said.text == "I would rather buy" and said.problem
    assert problem.problem and "no_call" in problem.text
    assert headline(tree) == "no valid answer, so no change"


def test_what_the_others_changed_is_said() -> None:
    document = {
        "conversations": [],
        "rulings": [{"symbol": "AAAUSDT", "side": "long", "asked": 1.0, "allowed": 0.5}],
        "clamps": [
            {
                "rule": "max_exposure",
                "symbol": "AAAUSDT",
                "asked": 9.0,
                "allowed": 5.0,
                "detail": "exposure +2.000 asked",
            }
        ],
        "orders": [
            {"symbol": "AAAUSDT", "quantity": -5.0, "stop": 90.0, "target": None, "delay": 2, "reduce_only": True}
        ],
        "net_return": -0.012,
        "equity_before": 10_000.0,
        "equity_after": 9_880.0,
    }
    assert headline(tree_of(document)) == (
        "no valid answer, so no change (RiskAnalyst left long AAAUSDT 50 %; the guard cut AAAUSDT) → account -1.20 %"
    )
    ruling, clamp, order, result = consequences(tree_of(document))
    assert ruling.text == "My verdict binds: long AAAUSDT goes from 100 % to 50 %."
    assert "exposure +2.000 asked" in clamp.text and "max_exposure" in clamp.text
    assert order.text == "Sell 5 AAAUSDT after 2 bars of waiting, stop 90, only to reduce."
    assert "-1.20 %, from 10,000.00 to 9,880.00" in result.text


@pytest.mark.parametrize(
    ("verdict", "verdicts", "said"),
    [
        ("reduce", 3, "My verdict binds: long AAAUSDT goes from 100 % to 50 %. It is the strictest of 3."),
        ("invalid", 1, "I gave no valid verdict, so long AAAUSDT may not grow: 50 % instead of 100 %"),
        (
            "invalid",
            2,
            "One of my 2 answers was not a valid verdict, so long AAAUSDT may not grow: 50 % instead of 100 %",
        ),
    ],
)
def test_of_several_verdicts_the_one_that_holds_is_said(verdict: str, verdicts: int, said: str) -> None:
    """Where one of several answers was no verdict, RiskAnalyst was once said to have given none at all."""
    ruling = {"symbol": "AAAUSDT", "side": "long", "asked": 1.0, "allowed": 0.5, "verdict": verdict, "ordinal": 1}
    lines = consequences(tree_of({"conversations": [], "rulings": [{**ruling, "verdicts": verdicts}]}))
    assert lines[0].text.startswith(said)


def test_every_kind_of_answer_has_its_sentence() -> None:
    position = {"symbol": "C1", "side": "long", "exposure": 0.5, "stop": 3.0, "reason": "trend"}
    tree = manager_says(render_call("submit_decision", {"positions": [position]}))
    assert conversation_lines(tree)[-1].text == "My decision:\nlong C1 50 % (stop 3 % away): trend"
    short = manager_says(render_call("submit_decision", {"positions": [{**position, "side": "short", "exposure": 0}]}))
    assert "\nflat in C1" in conversation_lines(short)[-1].text, "a short of 0 % is none"
    nothing = manager_says(render_call("submit_decision", {"positions": []}))
    assert conversation_lines(nothing)[-1].text.endswith("no change.")
    for role, name, arguments, sentence in (
        ("risk_analyst", "submit_verdict", {"verdict": "reduce", "to": 0.5, "loss": 8}, "Reduce to 50 %. In one case"),
        ("trader", "submit_orders", {"type": "market", "wait": 1, "slices": 2}, "after 1 bar, in 2 equal orders"),
        ("market_analyst", "submit_analysis", {"up": 1, "flat": 0, "down": 1}, "Up 50 %, flat 0 %, down 50 %."),
    ):
        conversation = {"role": role, "messages": [{"role": "assistant", "content": render_call(name, arguments)}]}
        assert sentence in conversation_lines(tree_of({"conversations": [conversation]}))[0].text


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_any_words_can_be_narrated(data: st.DataObject) -> None:
    document = json.loads(json.dumps(full_document().to_json()))
    for conversation in document["conversations"]:
        for message in conversation["messages"]:
            if message["role"] in ("assistant", "tool") and data.draw(st.booleans()):
                message["content"] = data.draw(
                    st.one_of(st.text(max_size=40), st.just("{}"), st.just("[1]"), st.just(json.dumps({"news": [{}]})))
                )
                del message["call"]
    tree = tree_of(document)
    assert narrate(tree)
    assert headline(tree)
