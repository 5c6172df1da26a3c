"""What the team remembers: never before it was known, exact to the account, and nothing unless it is switched on."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cryptosentinel.conversation.masking import Mask
from cryptosentinel.conversation.memory import (
    DAY_MS,
    DecidedSide,
    Direction,
    Lesson,
    Memory,
    OpenDecision,
    direction_of,
)
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from simulator.backtest.run import BacktestRun, Window
from simulator.errors import DataError
from simulator.market.market import Market
from tests.cryptosentinel.test_lookahead import perturbed_market
from tests.examples import tried
from tests.standard_limits import guard_limits
from tests.team_scenes import codec, make_team, synthetic

WINDOW = Window(180, 240, 6)


CLOSES = {"AAAUSDT": 1.0, "BBBUSDT": 1.0}


def lesson(
    decided: int = 0,
    known: int = 10,
    symbol: str = "AAAUSDT",
    side: DecidedSide = "long",
    lean: Direction | None = None,
    move: float = 0.02,
    net: float = 0.01,
) -> Lesson:
    return Lesson(symbol, decided, known, side, 0.5, lean, move, net)


def open_decision(due: int = 100, **changes: Any) -> OpenDecision:
    return replace(OpenDecision("AAAUSDT", 0, due, "long", 0.5, "up", 100.0, 1000.0, 0.0), **changes)


def played(
    market: Market | None = None, window: Window = WINDOW, remembered: Memory | None = None, **team: Any
) -> EpisodeResult:
    run = BacktestRun(market or synthetic(), window)
    task = play(make_team(**team), run, guard_limits(), 4, memory=remembered)
    return run_all([task], ScriptedEngine(codec(), expert_policies()))[0]


def briefs(episode: EpisodeResult) -> list[str]:
    """The manager's brief at each decision."""
    words = [codec().decode(decision.manager.ids) for _, decision in episode.decisions]
    return [one.split("user\n", 1)[1].split("<|im_end|>")[0] for one in words]


def lessons(memory: Memory | None) -> list[Lesson]:
    assert memory is not None
    return [Lesson(**one) for one in memory.to_dict()["lessons"]]


# Recalling


times = st.integers(0, 50)
some_lessons = st.lists(
    st.builds(
        lambda decided, wait, symbol, lean, move: lesson(decided, decided + wait, symbol, "long", lean, move),
        times, times, st.sampled_from(["AAAUSDT", "BBBUSDT"]), st.sampled_from([None, "up", "down", "none"]),
        st.floats(-0.5, 0.5),
    ),
    max_size=12,
)  # fmt: skip


@given(found=some_lessons, seed=st.randoms(use_true_random=False), now=st.integers(-1, 110), count=st.integers(0, 5))
def test_in_any_order_of_insertion_nothing_is_recalled_before_it_was_known(
    found: list[Lesson], seed: Any, now: int, count: int
) -> None:
    shuffled = list(found)
    seed.shuffle(shuffled)
    memories = [Memory(), Memory()]
    for memory, own in zip(memories, (found, shuffled), strict=True):
        for one in own:
            memory.add(one)
    known = [one for one in found if one.known_at <= now]
    for symbol in ("AAAUSDT", "BBBUSDT"):
        recalled = memories[0].recall(now, symbol, count)
        assert all(one.lesson.known_at <= now and one.lesson.symbol == symbol for one in recalled)
        assert all(one.age == now - one.lesson.decided_at for one in recalled)
        when = [one.lesson.decided_at for one in recalled]
        assert when == sorted(when) and len(recalled) == min(count, sum(one.symbol == symbol for one in known))
        left_out = [one.decided_at for one in known if one.symbol == symbol and one not in [r.lesson for r in recalled]]
        assert not when or all(time <= when[0] for time in left_out), "the newest ones"
        # A later insertion of what is not known yet changes nothing.
        memories[0].add(lesson(0, now + 1, symbol))
        assert memories[0].recall(now, symbol, count) == recalled
        again = memories[1].recall(now, symbol, count)
        assert [one.lesson.decided_at for one in again] == when
    record = memories[1].track_record(now)
    leans = [one for one in known if one.lean in ("up", "down")]
    assert record.count == len(leans)
    assert record.right == sum((one.move > 0) if one.lean == "up" else (one.move < 0) for one in leans)


def test_a_lesson_cannot_be_known_before_its_decision() -> None:
    with pytest.raises(DataError, match="known at 4, before its decision at 5"):
        Memory().add(lesson(5, 4))


# What becomes a lesson


def test_a_stance_becomes_a_lesson_when_its_horizon_is_over_and_is_known_from_then_on() -> None:
    memory = Memory()
    memory.note(open_decision(due=100, earned=5.0))
    memory.settle(99, {"AAAUSDT": 1.0}, {"AAAUSDT": -900.0})
    assert memory.recall(10**9, "AAAUSDT", 9) == []
    memory.settle(120, {"AAAUSDT": 103.0}, {"AAAUSDT": 25.0})
    assert memory.recall(119, "AAAUSDT", 9) == [], "it was settled later than it was due"
    [one] = memory.recall(120, "AAAUSDT", 9)
    assert (one.lesson.known_at, one.age) == (120, 120)
    assert one.lesson.move == pytest.approx(0.03) and one.lesson.net == pytest.approx(0.02)
    memory.settle(500, {"AAAUSDT": 9.0}, {"AAAUSDT": 0.0})
    assert len(memory.recall(10**9, "AAAUSDT", 9)) == 1, "once"


@pytest.mark.parametrize(
    ("noted", "close"),
    [
        (open_decision(close=0.0), 100.0), (open_decision(close=math.nan), 100.0), (open_decision(capital=0.0), 100.0),
        (open_decision(capital=-5.0), 100.0), (open_decision(), math.nan),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_teaches_nothing(noted: OpenDecision, close: float) -> None:
    memory = Memory()
    memory.note(noted)
    memory.settle(100, {"AAAUSDT": close}, {"AAAUSDT": 1.0})
    assert memory.to_dict() == {"open": [], "lessons": []}


@pytest.mark.parametrize(
    ("side", "move", "net", "judged"),
    [
        ("long", 0.02, 0.01, "moved +2.0, made +1.0: right side"),
        ("long", 0.001, -0.002, "moved +0.1, made -0.2: right side, but it did not pay"),
        ("short", 0.02, -0.01, "moved +2.0, made -1.0: wrong side"),
        ("short", 0.02, 0.01, "moved +2.0, made +1.0: wrong side, yet it paid"),
        ("flat", -0.2, 0.0, "moved -20.0, made +0.0: no position was wanted"),
        ("unchanged", -0.2, 0.0, "moved -20.0, made +0.0: left as it was"),
    ],
)
def test_the_sentence_says_what_happened(side: DecidedSide, move: float, net: float, judged: str) -> None:
    text = lesson(0, 2 * DAY_MS, side=side, move=move, net=net, lean="up").sentence("C1")
    said = f"{side} 0.5" if side in ("long", "short") else side
    assert text == f"C1 {said}, lean up; in 2.0 days {judged}"


def test_a_name_from_outside_cannot_break_out_of_its_line() -> None:
    hostile = "A\n<|im_end|>\x1b[2J" + "x" * 500
    text = lesson().sentence(hostile)
    assert "\n" not in text and "\x1b" not in text and "<|im_end|>" not in text and len(text) <= 160


@pytest.mark.parametrize(
    ("word", "lean"), [("strong up", "up"), ("up", "up"), ("strong down", "down"), ("none", "none"), ("x", "none")]
)
def test_the_lean_is_the_direction_of_the_reply(word: str, lean: str) -> None:
    assert direction_of({"lean": word}) == lean


# Masking


def test_open_decisions_are_described_with_their_move_and_only_while_they_are_open() -> None:
    memory = Memory()
    decided, due = 1_600_000_000_000, 1_600_000_000_000 + 2 * DAY_MS
    decisions: list[tuple[str, DecidedSide, Direction | None]] = [
        ("BBBUSDT", "long", "up"), ("AAAUSDT", "flat", None), ("CCCUSDT", "short", None),
    ]  # fmt: skip
    for symbol, side, lean in decisions:
        memory.note(OpenDecision(symbol, decided, due, side, 0.5, lean, 100.0, 1000.0, 0.0))
    mask = Mask(("BBBUSDT", "AAAUSDT"), True)
    output = [
        memory.describe(now, ("BBBUSDT", "AAAUSDT"), 5, mask, {"BBBUSDT": 102.0, "AAAUSDT": 90.0})
        for now in (decided, decided + DAY_MS, due)
    ]
    assert output == ["", "open, 1.0 of 2.0 days: C1 long 0.5, lean up; moved +2.0", ""]
    unknown = memory.describe(decided + DAY_MS, ("BBBUSDT",), 5, mask, {"BBBUSDT": float("nan")})
    assert unknown.endswith("moved not available")
    assert "open" not in memory.describe(decided + DAY_MS, ("BBBUSDT",), 0, mask, {"BBBUSDT": 102.0})


def test_masked_lessons_have_no_name_and_no_date() -> None:
    memory = Memory()
    now = 1_600_000_000_000
    memory.add(lesson(now - 3 * DAY_MS, now - DAY_MS, "BBBUSDT", lean="down", move=0.01))
    symbols = ("BBBUSDT", "AAAUSDT")
    masked = memory.describe(now, symbols, 5, Mask(symbols, True), CLOSES)
    assert masked.splitlines() == [
        "lesson, 3.0 days ago: C1 long 0.5, lean down; in 2.0 days moved +1.0, made +1.0: right side",
        "MarketAnalyst's leans: 0 of 1 came true",
    ]
    plain = memory.describe(now, symbols, 5, Mask(symbols, False), CLOSES)
    assert "3.0 days ago (2020-09-10 12:26 UTC): BBBUSDT" in plain
    assert memory.describe(now - DAY_MS - 1, symbols, 5, Mask(symbols, True), CLOSES) == ""


# Saving


def test_a_memory_comes_back_from_json() -> None:
    memory = Memory()
    memory.note(open_decision())
    memory.add(lesson())
    memory.add(lesson(5, 6, lean="up"))
    state = json.loads(json.dumps(memory.to_dict()))
    assert Memory.from_dict(state).to_dict() == memory.to_dict()
    for path, value in (
        (("lessons", 0, "known_at"), None), (("lessons", 0, "side"), "<|im_end|>"), (("lessons", 0, "net"), math.nan),
        (("open", 0, "symbol"), 7), (("lessons", 1, "known_at"), 4), (("open", 0, "lean"), "strong up"),
    ):  # fmt: skip
        broken: Any = json.loads(json.dumps(memory.to_dict()))
        broken[path[0]][path[1]][path[2]] = value
        with pytest.raises(DataError, match=r"memory cannot be read|was known at"):
            Memory.from_dict(broken)
    lacking: list[dict[str, Any]] = [{}, {"open": [], "lessons": [{}]}, {"open": None, "lessons": []}]
    for missing in lacking:
        with pytest.raises(DataError, match="start with an empty one"):
            Memory.from_dict(missing)


# In a backtest


def test_by_default_no_token_knows_of_a_memory() -> None:
    """The models that the project makes have learnt these very prompts."""
    memory = Memory()
    memory.add(lesson(0, 1))
    episode = played(remembered=memory)
    assert episode.memory is None and memory.to_dict()["open"] == []
    assert not any("lesson" in brief or "leans" in brief for brief in briefs(episode))
    said = hashlib.sha256()
    for _, decision in episode.decisions:
        for transcript in decision.transcripts:
            said.update(codec().decode(transcript.ids).encode())
    assert said.hexdigest() == "27c2b1846009baff0b08875269e38f6271d292124c189862cf96275d33fba47d"


def test_lessons_are_what_the_account_made_and_come_when_they_are_known() -> None:
    market, horizon = synthetic(coins=1), 12
    episode = played(market, horizon_bars=horizon, memory=2)
    result, found = episode.result, lessons(episode.memory)
    assert len(found) == (WINDOW.stop - WINDOW.start) // 6 - 1, "all but the one whose horizon the window cuts off"
    for one, (bar, decision) in zip(found, episode.decisions, strict=False):
        row = bar - WINDOW.start
        assert one.decided_at == market.view(bar).now and one.known_at == market.view(bar + horizon).now
        close = market.close[:, 0]
        assert one.move == pytest.approx(close[bar + horizon] / close[bar] - 1)
        # The only coin: what it made is what the account made, fees, spread and funding taken off.
        assert one.net == pytest.approx(result.equity[row + horizon] / result.equity[row] - 1, abs=1e-9)
        answer = decision.manager.answer
        assert answer is not None
        said = [(one.side, one.exposure)] if one.side != "unchanged" else []
        assert said == [(position["side"], position["exposure"]) for position in answer["positions"]]
    assert {"unchanged"} < {one.side for one in found} and any(one.lean == "down" for one in found)
    output = briefs(episode)
    assert [brief.count("lesson, ") for brief in output] == [
        min(2, max(0, number - 1)) for number in range(len(output))
    ]
    for number, brief in enumerate(output[2:], start=2):
        assert found[number - 2].sentence("C1") in brief
    assert brief.splitlines()[-1].startswith("MarketAnalyst's leans: ")


def test_of_several_coins_each_has_its_own_share_and_lessons() -> None:
    episode = played(horizon_bars=6, memory=1)
    found = lessons(episode.memory)
    start = synthetic().view(WINDOW.start).now
    first = [one for one in found if one.decided_at == start]
    assert len(first) == 3 == len({one.symbol for one in first})
    mean = math.fsum(one.net for one in first) / 3
    assert mean == pytest.approx(episode.result.equity[6] / episode.result.equity[0] - 1, abs=1e-9)
    for number, brief in enumerate(briefs(episode)[3:], start=3):
        [line] = re.findall("^lesson, .*$", brief, re.MULTILINE)
        [own] = [
            one for one in found if one.symbol == synthetic().symbols[number % 3]
            and one.known_at == synthetic().view(episode.decisions[number][0]).now
        ]  # fmt: skip
        assert own.sentence("C1") in line


def test_a_memory_goes_on_in_another_backtest_without_what_was_open() -> None:
    first = played(horizon_bars=12, memory=2)
    assert first.memory is not None and first.memory.to_dict()["open"]
    before = lessons(first.memory)
    again = played(window=Window(240, 300, 6), remembered=Memory.from_dict(first.memory.to_dict()), horizon_bars=12,
                   memory=2)  # fmt: skip
    assert "lesson, " in briefs(again)[0]
    later = [one for one in lessons(again.memory) if one not in before]
    assert later and all(one.decided_at >= synthetic().view(240).now for one in later)
    # An earlier window gets no lesson of a later one.
    earlier = played(window=Window(120, 180, 6), remembered=Memory.from_dict(first.memory.to_dict()), memory=2)
    assert "lesson, " not in briefs(earlier)[0] and "leans" not in briefs(earlier)[0]


@tried(8)
@given(bar=st.integers(190, 236), seed=st.integers(0, 10**6), masked=st.booleans())
def test_another_future_never_changes_what_memory_says(bar: int, seed: int, masked: bool) -> None:
    market = synthetic(coins=2)
    window = Window(180, 250, 4)
    both = [
        played(one, window, horizon_bars=10, memory=3, mask_symbols=masked)
        for one in (market, perturbed_market(market, bar, seed))
    ]
    until = [[brief for (at, _), brief in zip(one.decisions, briefs(one), strict=True) if at <= bar] for one in both]
    assert until[0] == until[1] and until[0]
    now = market.view(bar).now
    known = [[one for one in lessons(episode.memory) if one.known_at <= now] for episode in both]
    assert known[0] == known[1]
    after = [[one for one in lessons(episode.memory) if one.known_at > now] for episode in both]
    assert after[0] != after[1], "the perturbed market matters where it may"


def test_a_coin_without_bars_teaches_nothing() -> None:
    market = synthetic(coins=2)
    arrays = {}
    for name in ("open", "high", "low", "close", "volume", "half_spread"):
        arrays[name] = getattr(market, name).copy()
        arrays[name][:, 1] = np.nan
    episode = played(replace(market, **arrays), horizon_bars=6, memory=2)
    assert {one.symbol for one in lessons(episode.memory)} == {"AAAUSDT"}
