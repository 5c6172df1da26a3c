"""A decision as a tree: complete, in place, on a terminal of 80 columns and as a page, whatever was said."""

from __future__ import annotations

import io
import re
import unicodedata
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from backend.decisions.document import decision_story, episode_records, remarks, usage
from backend.decisions.tree import DecisionTree, decision_tree, decisions_told, manager_talk, tree_from, visible
from backend.reporting.decision_narrative import conversation, headline, real_names, tell
from backend.reporting.decision_views import page, text_tree
from backend.store.records import BacktestRecord, DecisionRecord, RunRecord
from backend.store.store import Store
from cryptosentinel.agents.manager import ASK_SEVERAL
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.guard.guard import GuardLimits
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from simulator.backtest.run import BacktestRun, Window
from simulator.errors import UserError
from tests.command_line import Run, program
from tests.cryptosentinel.test_episode import always, with_bars
from tests.stored_runs import add_backtest_run, add_demo_run, codec, episode, full_story, small_market
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


def tree_of(story: dict[str, Any], **more: Any) -> DecisionTree:
    return DecisionTree(DecisionRecord("b", "scripted", 0, 0, story), manager_talk(story), None, None, **more)


def shown(tree: DecisionTree, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(text_tree(tree), highlight=False)
    return out.getvalue()


def flat(text: str) -> str:
    """The words of a tree without its lines, for looking up what was wrapped."""
    return " ".join(re.sub(r"[│├└─]", " ", text).split())


class Reader(HTMLParser):
    """The tags of a page and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


# The tree


def test_consultations_hang_where_they_were_asked() -> None:
    story = full_story()
    talk = manager_talk(story)
    assert talk is not None
    asked = [other.role for turn in talk.turns for other in turn.consulted]
    assert asked == ["market_analyst", "risk_analyst", "trader"]
    assert [one.role for one in talk.everyone()] == ["manager", *asked]
    assert all(turn.result is not None for turn in talk.turns[:-1]) and talk.turns[-1].result is None
    stored = [(one["role"], one["policy_version"], one["answer"]) for one in story["conversations"]]
    assert [(one.role, one.version, one.answer) for one in talk.everyone()] == stored
    contents = [m["content"] for one in story["conversations"] for m in one["messages"] if m["role"] == "assistant"]
    assert sorted(contents) == sorted(turn.content for one in talk.everyone() for turn in one.turns)


def test_two_questions_to_one_role_keep_their_order() -> None:
    said = {
        "manager": [ask("market_analyst"), ask("market_analyst", "C2"), submit()],
        "market_analyst": ["Well.", analysis(0.1, 0.1, 0.8)],
    }
    decision = decide(SayingEngine(said))
    talk = manager_talk(decision_story(codec(), decision))
    assert talk is not None
    [first], [second] = (turn.consulted for turn in talk.turns[:2])
    assert first is not None and second is not None
    assert first.problem is not None and first.asked == {"symbol": "AAAUSDT"} and first.ordinal == 0
    assert second.answer is not None and second.asked == {"symbol": "BBBUSDT"} and second.ordinal == 1
    tree = tree_of(decision_story(codec(), decision))
    text = flat(shown(tree))
    assert "no answer: no_call" in text and 'result: {"error": "no valid answer"}' in text
    assert "C1 is AAAUSDT, C2 is BBBUSDT" in text


def test_questions_asked_at_once_hang_side_by_side() -> None:
    questions = [{"ask": "market_analyst", "symbol": "C1"}, {"ask": "market_analyst", "symbol": "C2"}]
    said = {
        "manager": [render_call(ASK_SEVERAL, {"questions": questions}), ask("market_analyst", "C3"), submit()],
        "market_analyst": ["Well.", analysis(), analysis(0.1, 0.1, 0.8)],
    }
    story = decision_story(codec(), decide(SayingEngine(said)))
    talk = manager_talk(story)
    assert talk is not None
    assert [[other.asked["symbol"][0] for other in turn.consulted] for turn in talk.turns] == [["A", "B"], ["C"], []]
    assert real_names(story) == {"C1": "AAAUSDT", "C2": "BBBUSDT", "C3": "CCCUSDT"}
    several = next(line for line in conversation(story) if line.speaker == "manager")
    assert several.text == "MarketAnalyst, where is AAAUSDT going?\nMarketAnalyst, where is BBBUSDT going?"
    assert [one.ordinal for one in talk.everyone()] == [0, 0, 1, 2]


@given(st.lists(st.tuples(st.booleans(), st.floats(-20.0, 0.0)), max_size=30))
def test_usage_counts_every_token_once_and_reads_it_at_every_turn(tokens: list[tuple[bool, float]]) -> None:
    mask = tuple(own for own, _ in tokens)
    logps = tuple(logp if own else 0.0 for own, logp in tokens)
    ids = tuple(range(len(tokens)))
    found = usage(Transcript("manager", 0, ids, mask, logps, "v", {}, None, "x", False))
    assert found["prompt"] + found["sampled"] == len(tokens) and found["sampled"] == sum(mask)
    words = "".join("x" if own else "." for own in mask)
    turns = [match.start() for match in re.finditer("x+", words)]
    assert found["turns"] == len(turns) and found["read"] == sum(turns)
    assert found["logp"] == pytest.approx(sum(logps))
    assert found["mean_logp"] == (pytest.approx(sum(logps) / sum(mask)) if any(mask) else None)


def test_every_fill_belongs_to_one_decision(store: Store) -> None:
    result = episode().result
    fills: list[Any] = []
    for record in store.decisions("b"):
        tree = decision_tree(store, "b", record.ordinal, "scripted")
        assert tree.fills is not None
        symbols = {order["symbol"] for order in record.story["orders"]}
        assert {fill["symbol"] for fill in tree.fills} <= symbols
        assert all(fill["time"] >= record.time for fill in tree.fills)
        assert not record.story["orders"] or tree.fills or tree.rejections, "an order fills or says why not"
        fills += tree.fills
    told = sorted((fill["time"], fill["symbol"], fill["quantity"]) for fill in fills)
    assert told == sorted((fill.time, fill.symbol, fill.quantity) for fill in result.fills) and told


def test_a_fill_at_the_close_of_the_next_decision_still_belongs_to_the_one_before() -> None:
    order = {"symbol": "A", "quantity": 1.0, "delay": 1}
    later = {"symbol": "A", "quantity": -2.0, "delay": 0}
    own = [
        DecisionRecord("r", "t", number, 100 + bar, {"orders": orders})
        for number, (bar, orders) in enumerate([(10, [order]), (11, []), (12, [later]), (12, [])])
    ]
    fills = [{"symbol": "A", "bar": bar} for bar in (10, 11, 12, 13, 14)] + [{"symbol": "B", "bar": 11}]
    gone = {"bar": 12, "order": order, "reason": "superseded", "detail": "by a decision at bar 12"}
    result = {"start": 10, "times": [110, 111, 112, 113, 114], "fills": fills, "rejections": [gone]}
    trees = [tree_from(record, own, result) for record in own]
    assert [[fill["bar"] for fill in tree.fills or ()] for tree in trees] == [[11, 12], [], [13, 14], []]
    assert [tree.rejections for tree in trees] == [(gone,), (), (), ()]


def test_an_evaluation_finds_its_result_and_another_window_has_none(store: Store) -> None:
    store.add_run(RunRecord("e", "evaluate", 1, "h", 0, {}))
    store.add_backtest(BacktestRecord("e", "held_out/trained", episode().result.to_dict()))
    for number, shift in ((0, 0), (1, 10**12)):
        records = episode_records("e", f"held_out/trained/{number}", codec(), episode())
        store.add_decisions([replace(record, time=record.time + shift) for record in records])
    first = decision_tree(store, "e", 0, "held_out/trained/0")
    assert first.fills
    assert decision_tree(store, "e", 0, "held_out/trained/1").fills == ()
    with pytest.raises(UserError, match=r"several teams.*0 to 59 of held_out/trained/0, 0 to 59 of held_out/trained/1"):
        decision_tree(store, "e", 0, None)


# Text


def test_the_text_is_whole_and_fits_80_columns(store: Store) -> None:
    number = next(r.ordinal for r in store.decisions("b") if len(r.story["conversations"]) == 4)
    tree = decision_tree(store, "b", number, None)
    text = shown(tree)
    assert max(map(len, text.splitlines())) <= 80
    words = flat(text)
    for part in (
        f"b: decision {number} of scripted at ", "policy scripted", "all conversations: ", "MarketAnalyst 0",
        'get_trend {}', 'asked about {"symbol": ', "result: ", "answer: submit_decision", "log-probability",
        "system: You are DeepTraderManager", "told: equity", "Guard: ", "Orders: ", "Fills: ", "Outcome: The account",
    ):  # fmt: skip
        assert part in words, part
    assert tree.manager is not None
    for key in ("prompt", "sampled", "turns", "read"):
        assert tree.total[key] == sum(talk.usage[key] for talk in tree.manager.everyone()) > 0


def test_decisions_of_older_stores_can_be_shown() -> None:
    story = deepcopy(full_story())
    del story["symbols"]
    for talk in story["conversations"]:
        for key in ("usage", "truncated"):
            del talk[key]
    words = flat(shown(tree_of(story)))
    assert "tokens and log-probabilities not available" in words and "tokens not available" in words
    assert "Fills: not available" in words
    assert tell(story) and headline(story)
    assert "not available" in page(tree_of(story))
    assert "nothing was said" in shown(tree_of({})) and "nothing was said" in page(tree_of({}))


def hostile_story(text: str) -> dict[str, Any]:
    """A story in which every text that a model or a source wrote is `text`."""
    story = deepcopy(full_story())
    for talk in story["conversations"]:
        talk["problem"], talk["answer"] = text, None
        talk["policy_version"] = text
        talk["messages"][1]["content"] = text
        for message in talk["messages"]:
            if message["role"] == "tool":
                message["content"] = text
        talk["messages"].append({"role": "assistant", "content": text})
    story["clamps"] = [{"rule": text, "symbol": text, "asked": 1.0, "allowed": 0.0, "detail": text}]
    return story


def obeyed(text: str) -> set[str]:
    return {one for one in text if one != "\n" and unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp")}


def test_no_escape_sequence_reaches_the_terminal() -> None:
    text = shown(tree_of(hostile_story(HOSTILE)))
    assert not obeyed(text) and "\\u{1b}]0;owned" in text.replace("\n", "")
    assert "[red]x[/red]" in flat(text), "markup stays text"
    assert visible("a\tb\nc") == "a\\u{9}b\nc" and visible("é 日本 🙂") == "é 日本 🙂"


def test_no_tag_of_a_model_gets_into_the_page() -> None:
    calm, hostile = (Reader(page(tree_of(hostile_story(text)))) for text in ("calm", HOSTILE))
    assert calm.tags == hostile.tags and "script" not in hostile.tags
    assert "<script>alert(1)</script>" in "".join(hostile.words), "it is shown as what it is"
    assert not obeyed(page(tree_of(hostile_story(HOSTILE))))
    text = page(tree_of(full_story()))
    assert not re.search(r"(?:src|href|url)\s*[=(]", text) and "default-src 'none'" in text


@settings(deadline=None, max_examples=40)
@given(st.text(max_size=60))
def test_whatever_is_said_can_be_shown(text: str) -> None:
    tree = tree_of(hostile_story(text))
    out = shown(tree, 60)
    assert not obeyed(out)
    read = Reader(page(tree))
    assert "script" not in read.tags and not obeyed("".join(read.words))


# The command


def test_the_commands_show_runs_and_decisions(command: Run, store: Store, tmp_path: Path) -> None:
    add_demo_run(store, "d")
    store.close()
    assert "b" in command("runs").out and "decisions: 0 to 59 of scripted" in command("runs", "b").out
    assert command("runs", "b").out == command("runs", "show", "b").out
    for arguments in (("show", "b"), ("b",)):
        result = command("runs", *arguments, "--decision", 3, "--team", "scripted")
        assert result.code == 0 and "b: decision 3 of scripted" in result.out, result.err
    target = tmp_path / "new" / "decision.html"
    assert command("runs", "show", "b", "--decision", 3, "--html", target).code == 0
    assert "b: decision 3 of scripted" in target.read_text()
    elsewhere = command("runs", "--store", tmp_path / "runs" / "store", "b", "--decision", 3)
    assert "b: decision 3 of scripted" in elsewhere.out


MISTAKES: dict[str, tuple[tuple[object, ...], str, str]] = {
    "no such run": (("show", "x"), "has no run 'x'", "newest runs"),
    "no such decision": (("b", "--decision", 60), "no decision 60", "0 to 59 of scripted"),
    "below zero": (("b", "--decision", -1), "no decision -1", "0 to 59 of scripted"),
    "no such team": (("b", "--decision", 1, "--team", "hold"), "no decisions of 'hold'", "0 to 59 of scripted"),
    "no decisions": (("d", "--decision", 1), "run d stores no decisions", "cryptosentinel runs"),
    "a team alone": (("b", "--team", "scripted"), "--decision N", "--decision N"),
    "a page of a run": (("b", "--html", "x.html"), "--decision N", "--decision N"),
    "a page that is a folder": (("b", "--decision", 1, "--html", "."), "cannot be written", "another file"),
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
    assert decisions_told([]) == ""


@pytest.mark.parametrize("role", ["manager", "market_analyst", "risk_analyst", "trader"])
def test_a_role_without_any_answer_is_named(role: str) -> None:
    engine = ScriptedEngine(codec(), {**expert_policies(), role: lambda messages, seed: "Well."})
    [played] = run_all([play(make_team(), BacktestRun(synthetic(), Window(180, 240, 6)), GuardLimits(), 4)], engine)
    [remark] = remarks_of(played, synthetic())
    title = {"manager": "DeepTraderManager", "market_analyst": "MarketAnalyst", "risk_analyst": "RiskAnalyst"}
    assert title.get(role, "Trader") in remark and "no valid answer in any of" in remark and "no_call" in remark
    assert ("never changed a position" in remark) == (role == "manager")


def test_a_liquidation_and_a_coin_without_a_price_are_told() -> None:
    market = with_bars(with_bars(synthetic(coins=2), 0, slice(200, None), 8.0), 1, slice(None), float("nan"))
    engine = always(submit(hold("C1", "short", 1.0)))
    task = play(make_team(), BacktestRun(market, Window(180, 240, 6)), GuardLimits(max_exposure=1.0), 4)
    [played] = run_all([task], engine)
    liquidated, untraded = remarks_of(played, market)
    assert "liquidated" in liquidated and "UTC" in liquidated and "nothing was decided" in liquidated
    assert untraded.startswith("BBBUSDT: no price")
