"""One decision of the team: what an answer may change, what a broken one does, and what is recorded of it."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cryptosentinel.agents.registry import MANAGER, ROLES, SUB_AGENTS
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.engine import Sampling
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scheduler import run_all
from cryptosentinel.team import Ruling, derive_seed
from simulator.backtest.run import BacktestRun, Window
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
    exposure_after,
    half_taught_policies,
    hand_made_account,
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
    view = synthetic().view(BAR)
    account = hand_made_account(view, {COIN: held})
    decision = decide(engine, bar=BAR, exposures={COIN: held}, **more)
    return exposure_after(view, account, decision.orders, COIN)


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


def test_a_coin_of_another_decision_is_refused() -> None:
    decision = decide(SayingEngine({"manager": [submit(hold("C2", "long", 1.0))]}), symbols=(COIN,))
    assert decision.events[0].startswith("manager#0: unknown_symbol") and decision.orders == []


def test_unmasked_the_real_names_are_spoken() -> None:
    engine = SayingEngine({"manager": [submit(hold(COIN, "long", 1.0))]})
    assert exposures(engine, mask_symbols=False) == pytest.approx(1.0)


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


def test_a_malformed_verdict_leaves_the_stricter_one_binding() -> None:
    manager = [ask("risk_analyst", **QUESTION)] * 2 + [submit(hold("C1", "long", 1.0))]
    said = {"manager": manager, "risk_analyst": [verdict("reduce", 0.25), "?"]}
    assert exposures(SayingEngine(said), 0.5) == pytest.approx(0.25)


def test_a_cut_off_answer_is_malformed_even_if_its_text_is_whole() -> None:
    decision = decide(SayingEngine({"manager": [CutOff(submit(hold("C1", "long", 1.0)))]}))
    assert decision.orders == [] and decision.manager.truncated
    assert decision.events == ["manager#0: cut_off: no end within the token limit"]


def test_a_cut_off_sub_agent_does_not_end_the_decision() -> None:
    manager = [ask("market_analyst"), submit(hold("C1", "long", 0.5))]
    decision = decide(SayingEngine({"manager": manager, "market_analyst": [CutOff("<tool_call>")]}))
    assert decision.manager.valid and not decision.manager.truncated
    assert decision.transcripts[1].truncated and decision.transcripts[1].reason == (
        "cut_off: no end within the token limit"
    )


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


def test_the_question_and_the_answer_are_handed_over_as_they_are() -> None:
    manager = [ask("risk_analyst", "C2", side="short", exposure=0.25), submit()]
    decision = decide(SayingEngine({"manager": manager, "risk_analyst": [verdict("reduce", 0.125)]}))
    [sub] = decision.transcripts[1:]
    assert sub.brief == {"symbol": "BBBUSDT", "side": "short", "exposure": 0.25}
    assert turns(sub)[1]["content"].startswith("C2: short 0.25, held 0.0,")
    assert turns(decision.manager)[3]["content"] == '{"verdict": "reduce", "to": 0.125, "loss": 5.0}'


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
VERDICTS = st.one_of(st.just(("approve", None)), st.just(("veto", None)), st.tuples(st.just("reduce"), st.floats(0, 1)))


@tried(120)
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
    engine = SayingEngine(
        {
            "manager": [
                *(ask("risk_analyst", side=one, exposure=size) for one, size, _ in asked),
                submit(hold("C1", side, exposure)),
            ],
            "risk_analyst": [verdict(*what) for _, _, what in asked],
        }
    )
    # The strictest verdict about the side binds; no approval ever allows more than was asked about.
    about = [(size, kind, to) for one, size, (kind, to) in asked if one == side]
    cap = None
    if about:
        limits = [0.0 if kind == "veto" else math.inf if to is None else to for _, kind, to in about]
        allowed_by = [0.0 if kind == "veto" else size if to is None else min(size, to) for size, kind, to in about]
        cap = min(min(limits), max(allowed_by))
    allowed = exposure if cap is None else min(exposure, cap)
    got = exposures(engine, held, share=share)
    sign = {"long": 1.0, "short": -1.0, "flat": 0.0}[side]
    if cap is not None and cap == 0.0:
        assert got == pytest.approx(0.0, abs=1e-9)
    assert got * sign <= allowed * share + SMALLEST_CHANGE
    assert got == pytest.approx(sign * allowed * share, abs=SMALLEST_CHANGE + 1e-9)


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ([verdict("veto"), verdict("approve")], 0.0),
        ([verdict("approve"), verdict("veto")], 0.0),
        ([verdict("reduce", 0.75), verdict("reduce", 0.5)], 0.5),
        ([verdict("reduce", 0.5), verdict("reduce", 0.75)], 0.5),
        ([verdict("reduce", 0.25), verdict("approve"), verdict("approve")], 0.25),
        (["no call", verdict("approve")], 0.0),
        ([verdict("approve"), "no call"], 0.0),
    ],
)
def test_asked_until_it_approves_the_strictest_verdict_binds(said: list[str], left: float) -> None:
    manager = [ask("risk_analyst", **QUESTION)] * len(said) + [submit(hold("C1", "long", 1.0))]
    decision = decide(SayingEngine({"manager": manager, "risk_analyst": said}))
    view = synthetic().view(BAR)
    assert exposure_after(view, hand_made_account(view, {}), decision.orders, COIN) == pytest.approx(left)
    [ruling] = decision.rulings
    assert (ruling.asked, ruling.allowed, ruling.verdicts) == (1.0, left, len(said))
    assert ruling.verdict == ("invalid" if "no call" in said else "veto" if left == 0.0 else "reduce")


@pytest.mark.parametrize(
    ("held", "side", "wanted", "left"),
    [
        (0.5, "long", 1.0, 0.5),  # it may not grow
        (0.5, "long", 0.2, 0.2),  # it may shrink
        (-0.5, "long", 1.0, 0.0),  # on this side nothing is held
        (-0.5, "short", 1.0, -0.5),
    ],
)
def test_without_a_valid_verdict_a_position_may_not_grow(held: float, side: str, wanted: float, left: float) -> None:
    manager = [ask("risk_analyst", side=side, exposure=wanted), submit(hold("C1", side, wanted))]
    assert exposures(SayingEngine({"manager": manager, "risk_analyst": ["no call"]}), held) == pytest.approx(left)


def test_a_verdict_concerns_its_coin_and_side_only() -> None:
    manager = [
        ask("risk_analyst", "C1", **QUESTION),
        ask("risk_analyst", "C2", **QUESTION),
        submit(hold("C1", "short", 1.0), hold("C2", "long", 1.0), hold("C3", "long", 1.0)),
    ]
    engine = SayingEngine({"manager": manager, "risk_analyst": [verdict("veto"), verdict("reduce", 0.5)]})
    view = synthetic().view(BAR)
    decision = decide(engine, bar=BAR)
    account = hand_made_account(view, {})
    after = [exposure_after(view, account, decision.orders, symbol) for symbol in view.symbols]
    assert after == pytest.approx([-1.0, 0.5, 1.0])
    assert decision.rulings == [Ruling("BBBUSDT", "long", 1.0, 0.5, "reduce", 1, 1)]


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


@pytest.mark.parametrize(
    ("up", "down", "lean"),
    [(0.6, 0.2, "strong up"), (0.4, 0.2, "up"), (0.4, 0.4, "none"), (0.2, 0.4, "down"), (0.1, 0.9, "strong down")],
)
def test_the_manager_hears_the_analyst_s_lean_and_numbers(up: float, down: float, lean: str) -> None:
    said = {"manager": [ask("market_analyst"), submit()], "market_analyst": [analysis(up, 1.0 - up - down, down)]}
    heard = json.loads(turns(decide(SayingEngine(said)).manager)[3]["content"])
    assert heard["lean"] == lean and (heard["up"], heard["down"]) == (up, down)


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


def test_what_was_cut_off_is_not_tried_again() -> None:
    engine = SayingEngine({"manager": [CutOff(submit()), submit()]})
    decision = decide(engine, retries=3)
    assert decision.manager.reason is not None and decision.manager.reason.startswith("cut_off")


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


def test_derived_seeds_are_what_they_were() -> None:
    """A run is repeated years later by its seed alone."""
    assert derive_seed(1, "manager", 0, 2) == derive_seed("1", "manager", "0", 2)
    assert derive_seed(1, 23) != derive_seed(12, 3)


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


@pytest.mark.parametrize(("wait", "word"), [(0, "now"), (1, "later"), (4, "later")])
def test_trader_s_plan_reaches_the_manager_with_a_word(wait: int, word: str) -> None:
    asked = ask("trader", symbol="C1", side="long", exposure=0.5)
    engine = SayingEngine({"manager": [asked, submit()], "trader": [execution(wait, 1)]})
    decision = decide(engine)
    plan = json.dumps({"type": "market", "wait": wait, "slices": 1})
    read = codec().decode(list(decision.manager.ids))
    assert f'{{"timing": "{word}", {plan[1:]}' in read
