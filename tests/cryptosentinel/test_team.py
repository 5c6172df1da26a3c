"""One decision of the team: what an answer may change, what a broken one does, and what is recorded of it."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.agents.manager import Side
from cryptosentinel.agents.registry import MANAGER, ROLES, SUB_AGENTS
from cryptosentinel.agents.trader import Execution
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.episode import play
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.engine import Sampling
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scheduler import run_all
from cryptosentinel.team import Ruling
from simulator.backtest.run import BacktestRun, Window, orders_for_target
from simulator.exchange.orders import on_step
from simulator.exchange.rules import SymbolRules
from tests.examples import tried
from tests.standard_limits import guard_limits
from tests.team_scenes import (
    CutOff,
    SayingEngine,
    analysis,
    ask,
    codec,
    decide,
    execution,
    half_taught_policies,
    hand_made_account,
    held_after,
    hold,
    make_team,
    submit,
    synthetic,
    verdict,
)

QUESTION: dict[str, Any] = {"side": "long", "exposure": 1.0}
COIN = "AAAUSDT"  # C1 behind the mask
BAR = 200
SMALLEST_CHANGE = 0.005  # of equity: below it no order is sent


def exposures(engine: SayingEngine, held: float = 0.0, **more: Any) -> float:
    """Exposure of the first coin after the decision's orders are filled."""
    decision = decide(engine, bar=BAR, exposures={COIN: held}, **more)
    return held_after(decision.orders, exposures={COIN: held})[COIN]


def turns(transcript: Transcript) -> list[dict[str, str]]:
    return codec().messages(transcript.ids)


# Broken answers


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("I would buy.", "no_call"),
        ("", "no_call"),
        ("<tool_call>\n{", "broken_call"),
        ('<tool_call>\n{"name": "submit_decision"}\n</tool_call>', "bad_shape"),
        (render_call("rm_rf", {}), "unknown_tool"),
        (analysis(), "unknown_tool"),
        (submit({"symbol": "C1", "side": "long", "exposure": "all"}), "bad_arguments"),
        (submit(hold("C1", "long", 1.0), hold("C1", "short", 1.0)), "bad_arguments"),
        (submit(hold("C9", "long", 1.0)), "unknown_symbol"),
        (submit(hold(COIN, "long", 1.0)), "unknown_symbol"),  # the masked team knows no real names
        (ask("market_analyst", "C9"), "unknown_symbol"),
        (ask("risk_analyst", "C9", **QUESTION), "unknown_symbol"),
    ],
)
def test_a_malformed_manager_changes_nothing_and_leaves_an_event(text: str, code: str) -> None:
    decision = decide(SayingEngine({"manager": [text]}), exposures={COIN: 0.7})
    assert decision.orders == [] and decision.rulings == [] and decision.clamps == []
    assert not decision.manager.valid and decision.manager.answer is None
    assert decision.manager.reason is not None and decision.manager.reason.startswith(f"{code}: ")
    assert decision.events == [f"manager#0: {decision.manager.reason}"]


@pytest.mark.parametrize("role", sorted(role.key for role in SUB_AGENTS.values()))
def test_after_a_malformed_sub_agent_the_manager_gets_an_error_and_goes_on(role: str) -> None:
    question: dict[str, Any] = {} if role == "market_analyst" else QUESTION
    engine = SayingEngine({"manager": [ask(role, **question), submit(hold("C1", "long", 0.5))], role: ["Hm."]})
    decision = decide(engine)
    assert turns(decision.manager)[3] == {"role": "tool", "content": '{"error": "no valid answer"}'}
    # Without RiskAnalyst's verdict a position may not grow.
    assert decision.manager.valid and len(decision.orders) == (0 if role == "risk_analyst" else 1)
    [sub] = decision.transcripts[1:]
    assert not sub.valid and sub.answer is None and not sub.truncated
    assert decision.events == [f"{role}#0: no_call: the turn is not exactly one <tool_call>…</tool_call>"]


def test_a_cut_off_answer_is_malformed_even_if_its_text_is_whole() -> None:
    decision = decide(SayingEngine({"manager": [CutOff(submit(hold("C1", "long", 1.0)))]}))
    assert decision.orders == [] and decision.manager.truncated
    assert decision.events == ["manager#0: cut_off: no end within the token limit"]


@pytest.mark.parametrize("role", list(ROLES))
def test_no_role_speaks_longer_than_its_turns(role: str) -> None:
    """Each role repeats a call that is no answer; it is heard `max_turns` times."""
    spoken = {"manager": [ask("market_analyst")] * 99, "market_analyst": [analysis()] * 99}
    if role != MANAGER.key:
        question = {} if role == "market_analyst" else QUESTION
        spoken["manager"] = [ask(role, **question), submit()]
        spoken[role] = [render_call(ROLES[role].tools[0].name, {})] * 99
    engine = SayingEngine(spoken)
    decision = decide(engine)
    limit = ROLES[role].max_turns
    assert sum(request.role == role for request in engine.requests) == limit
    [silent] = [t for t in decision.transcripts if t.role == role]
    assert silent.reason == f"no_answer: no {ROLES[role].answer.name} within {limit} turns"


# Delegation


@pytest.mark.parametrize("calls", [0, 1, MANAGER.max_turns - 1])
def test_the_manager_may_ask_as_often_as_it_wants(calls: int) -> None:
    roles = ["market_analyst", "risk_analyst", "trader"] * 3
    manager = [ask(role, **({} if role == "market_analyst" else QUESTION)) for role in roles[:calls]]
    engine = SayingEngine(
        {
            "manager": [*manager, submit()],
            "market_analyst": [analysis()] * 3,
            "risk_analyst": [verdict("approve")] * 3,
            "trader": [execution()] * 3,
        }
    )
    decision = decide(engine)
    assert decision.manager.valid
    assert [(t.role, t.ordinal) for t in decision.transcripts[1:]] == [
        (role, roles[:position].count(role)) for position, role in enumerate(roles[:calls])
    ]


def test_a_question_is_handed_over_as_it_is() -> None:
    manager = [ask("risk_analyst", "C2", side="short", exposure=0.25), submit()]
    decision = decide(SayingEngine({"manager": manager, "risk_analyst": [verdict("reduce", 0.125)]}))
    [sub] = decision.transcripts[1:]
    assert sub.brief == {"symbol": "BBBUSDT", "side": "short", "exposure": 0.25}
    assert turns(sub)[1]["content"].startswith("C2: short 0.25, held 0.0,")


@pytest.mark.parametrize(
    ("role", "said", "heard"),
    [
        ("risk_analyst", verdict("reduce", 0.125), {"verdict": "reduce", "to": 0.125, "loss": 5.0}),
        *(
            ("market_analyst", analysis(up, round(1.0 - up - down, 9), down), {"lean": lean, "up": up, "down": down})
            for up, down, lean in [
                (0.6, 0.2, "strong up"), (0.4, 0.2, "up"), (0.4, 0.4, "none"), (0.2, 0.4, "down"),
                (0.1, 0.9, "strong down"),
            ]
        ),
        *(
            ("trader", execution(wait, 1), {"timing": word, "type": "market", "wait": wait, "slices": 1})
            for wait, word in [(0, "now"), (1, "later"), (4, "later")]
        ),
    ],
)  # fmt: skip
def test_the_manager_hears_an_answer_and_what_it_comes_to(role: str, said: str, heard: dict[str, Any]) -> None:
    asked = ask(role, **({} if role == "market_analyst" else QUESTION))
    decision = decide(SayingEngine({"manager": [asked, submit()], role: [said]}))
    found = json.loads(turns(decision.manager)[3]["content"])
    assert {name: found.get(name) for name in heard} == heard


def test_a_tool_s_result_reaches_the_one_who_called_it() -> None:
    manager = [ask("market_analyst", "C3"), submit()]
    analyst = [render_call("get_trend", {}), analysis()]
    decision = decide(SayingEngine({"manager": manager, "market_analyst": analyst}))
    assert [turn["role"] for turn in turns(decision.transcripts[1])] == [
        "system", "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert '"trend"' in turns(decision.transcripts[1])[3]["content"]
    assert not any("trend" in turn["content"] for turn in turns(decision.manager))


# RiskAnalyst's verdict
SIDES = st.sampled_from(["long", "short", "flat"])
SIZES = st.floats(0, 3, allow_nan=False)
SIMPLE = [("approve", None), ("veto", None), ("invalid", None)]
VERDICTS = st.one_of(st.sampled_from(SIMPLE), st.tuples(st.just("reduce"), st.floats(0, 1)))


@tried(150)
@given(
    asked=st.lists(st.tuples(SIDES, SIZES, VERDICTS), max_size=5),
    side=SIDES,
    wanted=SIZES,
    held=st.sampled_from([0.0, 0.3, -0.3, 1.5, -1.5]),
    share=st.sampled_from([1.0, 0.5, 0.25]),
)
def test_a_verdict_can_only_shrink(
    asked: list[tuple[str, float, tuple[str, float | None]]], side: str, wanted: float, held: float, share: float
) -> None:
    exposure = 0.0 if side == "flat" else wanted
    questions = [ask("risk_analyst", side=one, exposure=size) for one, size, _ in asked]
    verdicts = ["no call" if kind == "invalid" else verdict(kind, to) for _, _, (kind, to) in asked]
    engine = SayingEngine({"manager": [*questions, submit(hold("C1", side, exposure))], "risk_analyst": verdicts})
    sign = {"long": 1.0, "short": -1.0, "flat": 0.0}[side]
    # The strictest verdict about the side binds, whichever came first; no approval ever allows more than was asked
    # about, and while one is not valid the position may not grow.
    about = [(size, kind, to) for one, size, (kind, to) in asked if one == side]
    most = {"veto": 0.0, "approve": math.inf, "invalid": max(0.0, sign * held / share)}
    limits = [to if to is not None else most[kind] for _, kind, to in about]
    allowed_by = [min(size, most[kind] if to is None else to) for size, kind, to in about if kind != "invalid"]
    cap = min([math.inf, *limits, max(allowed_by, default=math.inf)])
    allowed = min(exposure, cap)
    got = exposures(engine, held, share=share)
    if cap == 0.0:
        assert got * sign == pytest.approx(0.0, abs=1e-9)
    assert got * sign <= allowed * share + SMALLEST_CHANGE
    assert got == pytest.approx(sign * allowed * share, abs=SMALLEST_CHANGE + 1e-9)


def test_a_verdict_concerns_its_coin_and_side_only() -> None:
    manager = [
        ask("risk_analyst", "C1", **QUESTION),
        ask("risk_analyst", "C2", **QUESTION),
        submit(hold("C1", "short", 1.0), hold("C2", "long", 1.0), hold("C3", "long", 1.0)),
    ]
    engine = SayingEngine({"manager": manager, "risk_analyst": [verdict("veto"), verdict("reduce", 0.5)]})
    decision = decide(engine, bar=BAR)
    assert [*held_after(decision.orders).values()] == pytest.approx([-1.0, 0.5, 1.0])
    assert decision.rulings == [Ruling("BBBUSDT", "long", 1.0, 0.5, "reduce", 1, 1)]
    manager = [ask("risk_analyst", **QUESTION)] * 3 + [submit(hold("C1", "long", 1.0))]
    for said, ruled in ((verdict("veto"), "veto"), ("no call", "invalid")):
        answers = [verdict("approve"), said, verdict("reduce", 0.5)]
        [ruling] = decide(SayingEngine({"manager": manager, "risk_analyst": answers})).rulings
        assert (ruling.asked, ruling.allowed, ruling.verdict, ruling.verdicts) == (1.0, 0.0, ruled, 3)


@pytest.mark.parametrize("last", ["flat", "veto"])
def test_what_still_waits_is_stopped_too(last: str) -> None:
    run = BacktestRun(synthetic(), Window(BAR, BAR + 12, 1))
    first = [ask("trader", **QUESTION), submit(hold("C1", "long", 0.5))]
    second = {
        "flat": {"manager": [submit(hold("C1", "flat", 0.0))]},
        "veto": {
            "manager": [ask("risk_analyst", **QUESTION), submit(hold("C1", "long", 0.5))],
            "risk_analyst": [verdict("veto")],
        },
    }[last]
    for texts in ({"manager": first, "trader": [execution(wait=4)]}, second):
        task = make_team().decide(run.view(), run.account(), (COIN,), Guard(guard_limits()), 1)
        run.apply(run_all([task], SayingEngine(texts))[0].orders)
    while not run.done:
        run.apply([])
    assert (run.result().exposure == 0.0).all()


# Trader's plan


@pytest.mark.parametrize(("wait", "slices"), [(0, 1), (0, 3), (2, 1), (4, 3)])
def test_the_trader_s_plan_decides_when(wait: int, slices: int) -> None:
    manager = [ask("trader", **QUESTION), submit(hold("C1", "long", 0.9))]
    decision = decide(SayingEngine({"manager": manager, "trader": [execution(wait, slices)]}), bar=BAR)
    assert [order.delay for order in decision.orders] == list(range(wait, wait + slices))
    sizes = [order.quantity * synthetic().view(BAR).last_close(COIN) / 10_000 for order in decision.orders]
    assert sizes == pytest.approx([0.9 / slices] * slices)


@pytest.mark.parametrize(
    "wrong",
    [
        {"type": "limit"}, {"type": "market", "offset": 1.0}, {"type": "market", "rest": 2},
        {"type": "limit", "offset": 1.0, "rest": 0}, {"type": "stop", "offset": 1.0},
    ],
)  # fmt: skip
def test_a_plan_that_contradicts_itself_is_malformed(wrong: dict[str, Any]) -> None:
    said = render_call("submit_orders", {"wait": 0, "slices": 1, **wrong})
    decision = decide(SayingEngine({"manager": [ask("trader", **QUESTION), submit()], "trader": [said]}))
    assert "trader#0: bad_arguments" in decision.events[0]


# Another try


@pytest.mark.parametrize("retries", [0, 1, 2])
@pytest.mark.parametrize("wrong", ["I would buy.", render_call("rm_rf", {}), analysis()])
def test_a_malformed_turn_is_answered_and_tried_again_a_bounded_number_of_times(wrong: str, retries: int) -> None:
    engine = SayingEngine({"manager": [wrong, wrong, submit(hold("C1", "long", 0.5))]})
    decision = decide(engine, retries=retries)
    if retries < 2:
        assert not decision.orders and not decision.manager.valid and decision.retries == retries
        return
    assert decision.manager.valid and decision.retries == 2 and len(decision.orders) == 1
    output = [turn["content"] for turn in turns(decision.manager) if turn["role"] == "tool"]
    assert len(output) == 2 and all("error" in json.loads(one) for one in output)


def test_a_plan_is_for_its_side_and_without_one_orders_go_at_once() -> None:
    manager = [ask("trader", **QUESTION), submit(hold("C1", "short", 0.9), hold("C2", "long", 0.5))]
    decision = decide(SayingEngine({"manager": manager, "trader": [execution(3, 2)]}))
    assert [(order.symbol, order.delay) for order in decision.orders] == [("AAAUSDT", 0), ("BBBUSDT", 0)]


def test_stop_and_target_are_percent_of_the_price_now() -> None:
    engine = SayingEngine(
        {"manager": [submit(hold("C1", "long", 0.5, stop=5.0, target=20.0), hold("C2", "short", 0.5, stop=5.0))]}
    )
    first, second = decide(engine, bar=BAR).orders
    view = synthetic().view(BAR)
    prices = view.last_close("AAAUSDT"), view.last_close("BBBUSDT")
    assert first.stop == pytest.approx(0.95 * prices[0]) and first.target == pytest.approx(1.2 * prices[0])
    assert second.stop == pytest.approx(1.05 * prices[1]) and second.target is None


def test_a_coin_that_is_not_named_stays_as_it_is() -> None:
    assert exposures(SayingEngine({"manager": [submit()]}), held=0.7) == pytest.approx(0.7)


# The record


def test_what_the_model_sampled_is_masked_with_its_log_probs_and_nothing_else_is() -> None:
    manager = [ask("market_analyst"), ask("risk_analyst", **QUESTION), submit(hold("C1", "long", 0.5))]
    engine = SayingEngine(
        {
            "manager": manager,
            "market_analyst": [render_call("get_news", {}), render_call("get_trend", {}), analysis()],
            "risk_analyst": [CutOff("<tool_call>")],
        }
    )
    decision = decide(engine)
    for transcript in decision.transcripts:
        said = [
            (request, completion)
            for request, completion in zip(engine.requests, engine.completions, strict=True)
            if request.role == transcript.role
        ]
        # Each request is the conversation up to there, and what was sampled stands right behind it.
        mask = [False] * len(transcript.ids)
        logps = [0.0] * len(transcript.ids)
        for request, completion in said:
            begin = len(request.ids)
            assert transcript.ids[:begin] == request.ids
            assert transcript.ids[begin : begin + len(completion.ids)] == completion.ids
            mask[begin : begin + len(completion.ids)] = [True] * len(completion.ids)
            logps[begin : begin + len(completion.ids)] = completion.logps
        assert list(transcript.mask) == mask
        assert list(transcript.logps) == logps
        assert transcript.policy_version == f"{transcript.role}-v1"
        for earlier, later in pairwise(said):
            assert later[0].ids[: len(earlier[0].ids)] == earlier[0].ids
    assert sum(len(t.ids) for t in decision.transcripts) > sum(len(c.ids) for c in engine.completions)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**63 - 1))
def test_the_same_seed_gives_the_same_decision_and_ordinals_are_distinct(seed: int) -> None:
    engine = ScriptedEngine(codec(), half_taught_policies())
    first, second = decide(engine, seed=seed), decide(engine, seed=seed)
    assert first == second
    calls = [(transcript.role, transcript.ordinal) for transcript in first.transcripts]
    assert len(set(calls)) == len(calls)
    for role in ROLES:
        assert [ordinal for key, ordinal in calls if key == role] == list(range(sum(key == role for key, _ in calls)))
    for transcript in first.transcripts:
        assert len(transcript.ids) == len(transcript.mask) == len(transcript.logps)
        assert all(logp == 0.0 for logp, own in zip(transcript.logps, transcript.mask, strict=True) if not own)
        assert (transcript.answer is None) == (transcript.reason is not None)


def test_no_two_turns_share_a_seed() -> None:
    manager = [ask("market_analyst"), ask("market_analyst"), ask("trader", **QUESTION), submit()]
    spoken = {
        "manager": manager,
        "market_analyst": [render_call("get_news", {}), analysis(), analysis()],
        "trader": [execution()],
    }
    seeds = []
    for seed in (1, 2):
        engine = SayingEngine({role: list(texts) for role, texts in spoken.items()})
        decide(engine, seed=seed)
        seeds += [request.seed for request in engine.requests]
    assert len(seeds) == 16 and len(set(seeds)) == 16


def test_every_request_is_sampled_as_the_settings_say() -> None:
    wanted = Sampling(temperature=0.5, max_tokens=7)
    engine = SayingEngine({"manager": [ask("market_analyst"), submit()], "market_analyst": [analysis()]})
    decide(engine, sampling=wanted)
    assert [(request.role, request.sampling) for request in engine.requests] == [
        ("manager", wanted), ("market_analyst", wanted), ("manager", wanted),
    ]  # fmt: skip


def test_schemas_are_in_the_prompt_only_where_asked_for() -> None:
    for wanted in (True, False):
        engine = SayingEngine({"manager": [submit()]})
        decide(engine, schemas_in_prompt=wanted)
        system = codec().messages(engine.requests[0].ids)[0]["content"]
        assert ('"name": "consult_risk_analyst"' in system) is wanted


@pytest.mark.parametrize("held", [-0.5, 0.0, 1.0])
def test_a_coin_that_is_kept_is_as_one_that_is_not_named(held: float) -> None:
    keep = {"symbol": "C1", "reason": "the spread is wide", "side": "keep"}
    other = hold("C2", "long", 0.5)
    exposures = {synthetic().symbols[0]: held}
    kept, unnamed = (
        decide(SayingEngine({"manager": [submit(*positions)]}), exposures=exposures)
        for positions in ((keep, other), (other,))
    )
    assert kept.manager.valid and kept.orders == unnamed.orders and len(kept.orders) == 1
    unknown = decide(SayingEngine({"manager": [submit({**keep, "symbol": "C9"})]}))
    assert not unknown.manager.valid and not unknown.orders
    for more in ({"exposure": 0.5}, {"stop": 5.0}, {"target": 5.0}):
        assert not decide(SayingEngine({"manager": [submit({**keep, **more})]})).manager.valid


@pytest.mark.parametrize("side", ["long", "short"])
@pytest.mark.parametrize(("offset", "tick"), [(0.0, 0.0), (1.5, 0.0), (1.5, 0.25)])
def test_limits_rest_on_the_better_side_of_the_price(side: str, offset: float, tick: float) -> None:
    asked = ask("trader", symbol="C1", side=side, exposure=0.9)
    said = render_call("submit_orders", {"type": "limit", "wait": 1, "slices": 2, "offset": offset, "rest": 3})
    engine = SayingEngine({"manager": [asked, submit(hold("C1", side, 0.9))], "trader": [said]})
    orders = decide(engine, bar=BAR, rules={COIN: SymbolRules(tick=tick)}).orders
    price, better = synthetic().view(BAR).last_close(COIN), -1.0 if side == "long" else 1.0
    assert [(order.kind, order.delay, order.expire_bars) for order in orders] == [("limit", 1, 3), ("limit", 2, 3)]
    for order in orders:
        assert order.limit is not None and on_step(order.limit, tick)
        gained = better * (order.limit / price - 1.0)
        assert offset / 100 - 1e-9 <= gained <= offset / 100 + tick / price + 1e-9


@tried(60)
@given(held=st.sampled_from([-1.0, -0.5, -0.1, 0.0, 0.25, 1.0]), wanted=st.floats(-1.0, 1.0), slices=st.integers(1, 3))
def test_limits_turn_a_position_round_and_no_guard_cuts_them(held: float, wanted: float, slices: int) -> None:
    """What closes comes first and only reduces. All of it filled, the position is the wanted one."""
    view = synthetic().view(BAR)
    account = hand_made_account(view, {COIN: held})
    plan = Execution(type="limit", wait=0, slices=slices, offset=0.0)
    plain = orders_for_target(view, account, COIN, wanted, delays=plan.delays())
    orders = plan.placed(plain, view.last_close(COIN), SymbolRules(), account.positions[COIN])
    passed, clamps = Guard(guard_limits()).review(view, account, orders)
    assert passed == orders and not clamps
    position = account.positions[COIN]
    for order in orders:
        assert order.reduce_only == (position * order.quantity < 0.0) and order.kind == "limit"
        assert not order.reduce_only or abs(order.quantity) <= abs(position) + 1e-9
        position = 0.0 if abs(position + order.quantity) < 1e-9 else position + order.quantity
    assert position == pytest.approx(account.positions[COIN] + sum(order.quantity for order in plain))
    assert [order.delay for order in orders] == sorted(order.delay for order in orders)


def test_a_limit_that_turns_a_position_round_is_filled_whole() -> None:
    """A bar that goes through its price fills what closes and what opens, in this order."""
    market, bars = synthetic(coins=1), Window(200, 212, 4)
    said = render_call("submit_orders", {"type": "limit", "wait": 0, "slices": 1, "offset": 0.0})
    sides: list[Side] = ["long", "short", "long"]
    turns = [(ask("trader", symbol="C1", side=side, exposure=1.0), submit(hold("C1", side, 1.0))) for side in sides]
    engine = SayingEngine({"manager": [one for turn in turns for one in turn], "trader": [said] * 3})
    [episode] = run_all([play(make_team(), BacktestRun(market, bars), guard_limits(), 0)], engine)
    sent = [decision.orders for _, decision in episode.decisions]
    assert [[order.reduce_only for order in orders] for orders in sent] == [[False], [True, False], [True, False]]
    fills = [fill.quantity for fill in episode.result.fills]
    assert len(fills) == 5 and sum(fills) > 0.0 > sum(fills[:3]), "each was filled, and turned the position"


def test_orders_that_rest_end_with_the_next_decision() -> None:
    said = render_call("submit_orders", {"type": "limit", "wait": 0, "slices": 1, "offset": 20.0})
    asks = ask("trader", symbol="C1", side="long", exposure=0.5)
    engine = SayingEngine({"manager": [asks, submit(hold("C1", "long", 0.5))] * 3, "trader": [said] * 3})
    run = BacktestRun(synthetic(coins=1), Window(200, 212, 4))
    [episode] = run_all([play(make_team(), run, guard_limits(), 0)], engine)
    assert [len(decision.orders) for _, decision in episode.decisions] == [1, 1, 1]
    ended = [rejection.reason for rejection in episode.result.rejections]
    assert ended == ["cancelled", "cancelled", "window_end"] and not episode.result.fills
