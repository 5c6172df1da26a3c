"""A decision as a tree: complete, in place, on a terminal of 80 columns and as a page, whatever was said."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.decisions.backtest_document import BacktestDocument, write_backtest
from backend.decisions.document import DecisionDocument, StoredDecision, read_decisions, write_decisions
from backend.decisions.recording import decision_document, episode_decisions, remarks, token_usage
from backend.decisions.tree import DecisionTree, decision_tree, describe_decisions, find_decision, traced_tree
from backend.reporting.decision_narrative import conversation_lines, headline, narrate, transcript
from backend.store.records import RunRecord
from backend.store.store import Store
from cryptosentinel.agents.manager import ASK_SEVERAL
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import ToolCall, render_call
from cryptosentinel.protocol.untrusted import visible
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from simulator.backtest.run import BacktestRun, Window
from simulator.errors import UserError
from simulator.exchange.exchange_records import Fill, Rejection
from simulator.exchange.orders import Order
from simulator.tables import EARLIEST
from tests.command_line import Run, program
from tests.cryptosentinel.test_episode import always, with_bars
from tests.standard_limits import guard_limits
from tests.stored_runs import add_backtest_run, add_demo_run, codec, decision_of, episode, full_document, small_market
from tests.team_scenes import SayingEngine, analysis, ask, decide, hold, make_team, submit, synthetic

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\u2066\x00\r<script>alert(1)</script><|im_end|>&amp;[red]x[/red]"


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return program(tmp_path, monkeypatch, capsys)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "runs" / "store") as opened:
        add_backtest_run(opened, "b")
        yield opened


def stored(document: DecisionDocument) -> StoredDecision:
    return StoredDecision("b", "scripted", 0, 0, document)


def tree_of(**written: Any) -> DecisionTree:
    """The tree of a decision of which only some fields matter."""
    return decision_tree(decision_of(**written))


def shown(tree: DecisionTree) -> str:
    return transcript(stored(tree.document), tree)


def flat(text: str) -> str:
    """The words of a text without its lines."""
    return " ".join(text.split())


# The tree


def test_consultations_hang_where_they_were_asked() -> None:
    document = full_document()
    manager = decision_tree(document).manager
    assert manager is not None
    asked = [other.role for turn in manager.turns for other in turn.consulted]
    assert asked == ["market_analyst", "risk_analyst", "trader"]
    assert [one.role for one in manager.everyone()] == ["manager", *asked]
    assert all(turn.result is not None for turn in manager.turns[:-1]) and manager.turns[-1].result is None
    assert [one.document for one in manager.everyone()] == list(document.conversations)
    contents = [m.content for one in document.conversations for m in one.messages if m.role == "assistant"]
    assert sorted(contents) == sorted(turn.content for one in manager.everyone() for turn in one.turns)


def test_two_questions_to_one_role_keep_their_order() -> None:
    said = {
        "manager": [ask("market_analyst"), ask("market_analyst", "C2"), submit()],
        "market_analyst": ["Well.", analysis(0.1, 0.1, 0.8)],
    }
    tree = decision_tree(decision_document(codec(), decide(SayingEngine(said))))
    assert tree.manager is not None
    [first], [second] = ([other.document for other in turn.consulted] for turn in tree.manager.turns[:2])
    assert first.problem is not None and first.asked == {"symbol": "AAAUSDT"} and first.ordinal == 0
    assert second.answer is not None and second.asked == {"symbol": "BBBUSDT"} and second.ordinal == 1
    text = flat(shown(tree))
    assert "This answer could not be used (no_call" in text
    assert "C1 is AAAUSDT, C2 is BBBUSDT" in text


def test_questions_asked_at_once_hang_side_by_side() -> None:
    questions = [{"ask": "market_analyst", "symbol": "C1"}, {"ask": "market_analyst", "symbol": "C2"}]
    said = {
        "manager": [render_call(ASK_SEVERAL, {"questions": questions}), ask("market_analyst", "C3"), submit()],
        "market_analyst": ["Well.", analysis(), analysis(0.1, 0.1, 0.8)],
    }
    tree = decision_tree(decision_document(codec(), decide(SayingEngine(said))))
    manager = tree.manager
    assert manager is not None
    symbols = [[str(other.document.asked["symbol"])[0] for other in turn.consulted] for turn in manager.turns]
    assert symbols == [["A", "B"], ["C"], []]
    assert tree.names == {"C1": "AAAUSDT", "C2": "BBBUSDT", "C3": "CCCUSDT"}
    several = next(line for line in conversation_lines(tree) if line.speaker == "manager")
    assert several.text == "MarketAnalyst, where is AAAUSDT going?\nMarketAnalyst, where is BBBUSDT going?"
    assert [one.document.ordinal for one in manager.everyone()] == [0, 0, 1, 2]


def test_a_question_that_is_asked_again_opens_nothing_and_the_next_one_keeps_its_answer() -> None:
    """With full prompts the same call gets a note in place of another conversation."""
    said = {
        "manager": [ask("market_analyst"), ask("market_analyst"), ask("market_analyst", "C2"), submit()],
        "market_analyst": [analysis(), analysis(0.1, 0.1, 0.8)],
    }
    tree = decision_tree(decision_document(codec(), decide(SayingEngine(said), prompts="full")))
    assert tree.manager is not None
    symbols = [[other.document.asked["symbol"] for other in turn.consulted] for turn in tree.manager.turns]
    assert symbols == [["AAAUSDT"], [], ["BBBUSDT"], []]


def test_a_turn_is_stored_as_it_was_read_when_it_was_said() -> None:
    """The tree reads no text: other words in the place of a stored turn's change nothing in what it calls."""
    document = full_document()
    written = json.loads(json.dumps(document.to_json()))
    for conversation in written["conversations"]:
        for message in conversation["messages"]:
            assert (message["call"] is not None) == (message["role"] == "assistant")
            message["content"] = "other words" if message["role"] == "assistant" else message["content"]
    before, after = decision_tree(document).manager, decision_tree(DecisionDocument.from_json(written, "test")).manager
    assert before is not None and after is not None
    for one, other in zip(before.everyone(), after.everyone(), strict=True):
        assert [turn.call for turn in one.turns] == [turn.call for turn in other.turns]
        assert all(isinstance(turn.call, ToolCall) for turn in one.turns)


@given(st.lists(st.tuples(st.booleans(), st.floats(-20.0, 0.0)), max_size=30))
def test_usage_counts_every_token_once_and_reads_it_at_every_turn(tokens: list[tuple[bool, float]]) -> None:
    mask = tuple(own for own, _ in tokens)
    logps = tuple(logp if own else 0.0 for own, logp in tokens)
    ids = tuple(range(len(tokens)))
    usage = token_usage(Transcript("manager", 0, ids, mask, logps, "v", {}, None, "x", False))
    assert usage.prompt + usage.sampled == len(tokens) and usage.sampled == sum(mask)
    words = "".join("x" if own else "." for own in mask)
    turns = [match.start() for match in re.finditer("x+", words)]
    assert usage.turns == len(turns) and usage.read == sum(turns)
    assert usage.logp == pytest.approx(sum(logps))
    assert usage.mean_logp == (pytest.approx(sum(logps) / sum(mask)) if any(mask) else None)


def test_every_fill_belongs_to_one_decision(store: Store) -> None:
    result = episode().result
    fills: list[Fill] = []
    for decision in read_decisions(store, "b"):
        _, tree = find_decision(store, "b", decision.ordinal, "scripted")
        assert tree.fills is not None
        orders = decision.document.orders
        assert {fill.symbol for fill in tree.fills} <= {order.symbol for order in orders}
        assert all(fill.time >= decision.time for fill in tree.fills)
        assert not orders or tree.fills or tree.rejections, "an order fills or says why not"
        fills += tree.fills
    assert sorted(fills, key=repr) == sorted(result.fills, key=repr) and fills


def test_a_fill_at_the_close_of_the_next_decision_still_belongs_to_the_one_before() -> None:
    order, later = Order("A", 1.0, delay=1), Order("A", -2.0)
    own = [
        StoredDecision("r", "t", number, EARLIEST + 100 + bar, decision_of(orders=orders))
        for number, (bar, orders) in enumerate([(10, [order]), (11, []), (12, [later]), (12, [])])
    ]
    fills = [Fill(0, bar, "A", 1.0, 1.0, 0.0, 0.0, "order") for bar in (10, 11, 12, 13, 14)]
    fills.append(Fill(0, 11, "B", 1.0, 1.0, 0.0, 0.0, "order"))
    refused = Rejection(12, order, "superseded", "by a decision at bar 12")
    whole = episode().result
    result = replace(
        whole,
        start=10, times=EARLIEST + np.arange(110, 115), fills=tuple(fills), rejections=(refused,),
        equity=whole.equity[:5], exposure=whole.exposure[:5],
    )  # fmt: skip
    trees = [traced_tree(decision_tree(one.document), one, own, BacktestDocument.of(result)) for one in own]
    assert [[fill.bar for fill in tree.fills or ()] for tree in trees] == [[11, 12], [], [13, 14], []]
    assert [[(one.bar, one.reason) for one in tree.rejections or ()] for tree in trees] == [
        [(12, "superseded")], [], [], [],
    ]  # fmt: skip


def test_an_evaluation_finds_its_result_and_another_window_has_none(store: Store) -> None:
    store.add_run(RunRecord("e", "evaluate", 1, "h", 0, {}))
    write_backtest(store, "e", "held_out/trained", episode().result)
    for number, shift in ((0, 0), (1, 10**12)):
        decisions = episode_decisions("e", f"held_out/trained/{number}", codec(), episode())
        write_decisions(store, [replace(decision, time=decision.time + shift) for decision in decisions])
    _, first = find_decision(store, "e", 0, "held_out/trained/0")
    assert first.fills
    _, elsewhere = find_decision(store, "e", 0, "held_out/trained/1")
    assert elsewhere.fills == ()
    with pytest.raises(UserError, match=r"several teams.*0 to 59 of held_out/trained/0, 0 to 59 of held_out/trained/1"):
        find_decision(store, "e", 0, None)


# Text


def test_the_text_is_whole(store: Store) -> None:
    number = next(one.ordinal for one in read_decisions(store, "b") if len(one.document.conversations) == 4)
    decision, tree = find_decision(store, "b", number, None)
    words = flat(transcript(decision, tree))
    for part in (
        f"b: decision {number} of scripted at ", "policy scripted", "all conversations: ", "MarketAnalyst looks up",
        "<tool_call>", "submit_decision", "log-probability", "You are DeepTraderManager", "Guard: ", "Orders: ",
        "Fills: ", "What it earned: The account",
    ):  # fmt: skip
        assert part in words, part
    usages = [conversation.usage for conversation in decision.document.conversations]
    read, sampled = (sum(getattr(one, key) for one in usages) for key in ("read", "sampled"))
    assert f"{sampled:,} of them sampled; {read:,} read" in words
    for conversation in decision.document.conversations:
        for message in conversation.messages:
            assert flat(message.content) in words, "every word as it was said"


def test_a_decision_in_which_nothing_was_said_can_be_shown() -> None:
    tree = tree_of()
    assert narrate(tree) and headline(tree)
    assert "nothing was said" in shown(tree)


def hostile_tree(text: str) -> DecisionTree:
    """A decision in which every text that a model or a source wrote is `text`."""
    document: dict[str, Any] = json.loads(json.dumps(full_document().to_json()))
    for conversation in document["conversations"]:
        conversation["problem"], conversation["answer"] = text, None
        conversation["policy_version"] = text
        conversation["messages"][1]["content"] = text
        for message in conversation["messages"]:
            if message["role"] == "tool":
                message["content"] = text
            message.pop("call", None)
        call = {"code": "no_call", "detail": text}
        conversation["messages"].append({"role": "assistant", "content": text, "call": call})
    document["clamps"] = [{"rule": text, "symbol": text, "asked": 1.0, "allowed": 0.0, "detail": text}]
    return tree_of(**document)


def obeyed(text: str) -> set[str]:
    return {one for one in text if one != "\n" and unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


def test_no_escape_sequence_reaches_the_terminal() -> None:
    text = shown(hostile_tree(HOSTILE))
    assert not obeyed(text) and "\\u{1b}]0;owned" in text.replace("\n", "")
    assert "[red]x[/red]" in flat(text), "markup stays text"
    assert visible("a\tb\nc") == "a\\u{9}b\nc" and visible("é 日本 🙂") == "é 日本 🙂"


@settings(deadline=None, max_examples=40)
@given(st.text(max_size=60))
def test_whatever_is_said_can_be_shown(text: str) -> None:
    tree = hostile_tree(text)
    assert not obeyed(shown(tree))


# The command


def test_the_commands_show_runs_and_decisions(command: Run, store: Store, tmp_path: Path) -> None:
    add_demo_run(store, "d")
    store.close()
    assert "b" in command("runs").out and "decisions: 0 to 59 of scripted" in command("runs", "b").out
    assert command("runs", "b").out == command("runs", "show", "b").out
    for arguments in (("show", "b"), ("b",)):
        result = command("runs", *arguments, "--decision", 3, "--team", "scripted")
        assert result.code == 0 and "b: decision 3 of scripted" in result.out, result.err
    elsewhere = command("runs", "--store", tmp_path / "runs" / "store", "b", "--decision", 3)
    assert "b: decision 3 of scripted" in elsewhere.out


MISTAKES: dict[str, tuple[tuple[object, ...], str, str]] = {
    "no such run": (("show", "x"), "has no run 'x'", "newest runs"),
    "no such decision": (("b", "--decision", 60), "no decision 60", "0 to 59 of scripted"),
    "below zero": (("b", "--decision", -1), "no decision -1", "0 to 59 of scripted"),
    "no such team": (("b", "--decision", 1, "--team", "hold"), "no decisions of 'hold'", "0 to 59 of scripted"),
    "no decisions": (("d", "--decision", 1), "run d stores no decisions", "cryptosentinel runs"),
    "a team alone": (("b", "--team", "scripted"), "--decision N", "--decision N"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_told_in_a_sentence(what: str, command: Run, store: Store) -> None:
    add_demo_run(store, "d")
    store.close()
    arguments, trouble, way_out = MISTAKES[what]
    result = command("runs", *arguments)
    assert result.code == 2 and trouble in result.err and way_out in result.err
    assert "Traceback" not in result.err + result.out


def test_a_stored_message_cannot_paint_the_terminal(command: Run, store: Store) -> None:
    store.finish_run("b", "failed", "\x1b[2J[bold]boo[/bold]")
    store.close()
    out = command("runs", "b").out
    assert "\x1b[2J" not in out and "[bold]boo[/bold]" in out


# What the report must say


def remarks_of(played: EpisodeResult, market: Any) -> list[str]:
    return remarks("scripted", played, market)


def test_a_good_run_needs_no_remark() -> None:
    assert remarks_of(episode(), small_market()) == []
    assert describe_decisions([]) == ""


@pytest.mark.parametrize("role", ["manager", "market_analyst", "risk_analyst", "trader"])
def test_a_role_without_any_answer_is_named(role: str) -> None:
    engine = ScriptedEngine(codec(), {**expert_policies(), role: lambda messages, seed: "Well."})
    [played] = run_all([play(make_team(), BacktestRun(synthetic(), Window(180, 240, 6)), guard_limits(), 4)], engine)
    [remark] = remarks_of(played, synthetic())
    title = {"manager": "DeepTraderManager", "market_analyst": "MarketAnalyst", "risk_analyst": "RiskAnalyst"}
    assert title.get(role, "Trader") in remark and "no valid answer in any of" in remark and "no_call" in remark
    assert ("never changed a position" in remark) == (role == "manager")


def test_a_liquidation_and_a_coin_without_a_price_are_told() -> None:
    market = with_bars(with_bars(synthetic(coins=2), 0, slice(200, None), 8.0), 1, slice(None), float("nan"))
    engine = always(submit(hold("C1", "short", 1.0)))
    task = play(make_team(), BacktestRun(market, Window(180, 240, 6)), guard_limits(max_exposure=1.0), 4)
    [played] = run_all([task], engine)
    liquidated, untraded = remarks_of(played, market)
    assert "liquidated" in liquidated and "UTC" in liquidated and "nothing was decided" in liquidated
    assert untraded.startswith("BBBUSDT: no price")
