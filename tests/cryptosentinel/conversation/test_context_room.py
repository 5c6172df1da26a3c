"""Conversations that outgrow the model's context: the oldest results go first, openly, and nothing else changes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cryptosentinel.conversation.budget import Price
from cryptosentinel.conversation.transcript import Conversation
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.llm.engine import Completion, Request, Usage, failed_completion
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import render_call
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from simulator.backtest.run import BacktestRun, Window
from tests.standard_limits import guard_limits
from tests.team_scenes import (
    SayingEngine,
    analysis,
    ask,
    codec,
    decide,
    hold,
    make_team,
    submit,
    synthetic,
)

CALL = render_call("get_bars", {})


def grown(sizes: list[int]) -> Conversation:
    """A conversation with one tool result of each size."""
    talk = Conversation(codec(), "manager", 0, "v1", "system", "user", ())
    for number, size in enumerate(sizes):
        say(talk, CALL)
        talk.add_tool_response({"n": number, "filling": "x" * size})
    return talk


def say(talk: Conversation, text: str) -> None:
    ids = tuple(codec().encode_assistant(text))
    talk.add_completion(Completion(ids, tuple(-0.5 for _ in ids), True))


def tools_said(talk: Conversation) -> list[str]:
    return [turn["content"] for turn in codec().messages(talk.ids) if turn["role"] == "tool"]


@given(sizes=st.lists(st.integers(0, 300), max_size=6), cut=st.integers(0, 2500))
def test_the_oldest_results_go_first_and_only_as_many_as_must(sizes: list[int], cut: int) -> None:
    whole = grown(sizes)
    turns, length = codec().messages(whole.ids), len(whole.ids)
    talk = grown(sizes)
    limit = length - cut
    fits = talk.make_room(limit)
    assert fits == (len(talk.ids) <= limit)
    after = codec().messages(talk.ids)
    assert [turn["role"] for turn in after] == [turn["role"] for turn in turns]
    changed = [number for number, (old, new) in enumerate(zip(turns, after, strict=True)) if old != new]
    assert all(turns[number]["role"] == "tool" and "dropped" in after[number]["content"] for number in changed)
    assert len(changed) == talk.dropped
    results = [number for number, turn in enumerate(turns) if turn["role"] == "tool"]
    assert not results or results[-1] not in changed  # the newest is what the next turn answers
    if cut == 0:
        assert not changed
    if not fits:  # whatever would have saved anything is gone
        rest = [one for one in results[:-1] if one not in changed]
        assert all(len(turns[one]["content"]) <= len(after[changed[0]]["content"]) for one in rest if changed)


def test_what_was_said_before_is_not_trained_on_and_what_follows_is() -> None:
    talk = grown([200, 200, 200])
    assert talk.make_room(len(talk.ids) - 100)
    cut = len(talk.ids)
    say(talk, CALL)
    talk.add_tool_response({"n": 3})
    assert talk.make_room(10**6)  # nothing to drop: what was said since stays as it is
    transcript = talk.finish({}, None, None)
    assert transcript.dropped == 1 and len(transcript.ids) == len(transcript.mask) == len(transcript.logps)
    assert not any(transcript.mask[:cut]) and any(transcript.mask[cut:])
    assert [logp for logp, own in zip(transcript.logps, transcript.mask, strict=True) if not own] == [0.0] * (
        len(transcript.ids) - sum(transcript.mask)
    )


def bars_asked(times: int, **settings: Any) -> tuple[SayingEngine, list[str], int]:
    """The analyst looks at the bars again and again; what it was shown at last, and what was dropped."""
    analyst = [render_call("get_bars", {})] * times + [render_call("submit_analysis", {"up": 1, "flat": 0, "down": 0})]
    engine = SayingEngine(
        {"manager": [ask("market_analyst"), submit(hold("C1", "flat", 0))], "market_analyst": analyst}
    )
    decision = decide(engine, **settings)
    analyst_talk = decision.transcripts[1]
    said = [turn["content"] for turn in codec().messages(analyst_talk.ids) if turn["role"] == "tool"]
    return engine, said, analyst_talk.dropped


def test_no_request_is_longer_than_the_context_allows() -> None:
    engine, said, dropped = bars_asked(5)
    assert dropped == 0 and not any("dropped" in text for text in said)
    longest = max(len(request.ids) for request in engine.requests)
    answer = engine.requests[0].sampling.max_tokens
    limit = longest + answer - 1
    engine, said, dropped = bars_asked(5, context_tokens=limit)
    assert dropped >= 1 and "dropped" in said[0] and "dropped" not in said[-1]
    assert all(len(request.ids) + answer <= limit for request in engine.requests)


@pytest.mark.parametrize("context", [200, 400])
def test_a_prompt_that_never_fits_is_an_answer_that_is_missing(context: int) -> None:
    decision = decide(SayingEngine({"manager": [submit(hold("C1", "flat", 0))]}), context_tokens=context)
    assert decision.orders == [] and decision.events[0].startswith("manager#0: no_room: ")


PRICE = Price(prompt=3.0, cached=0.3, sampled=15.0)
WINDOW = Window(180, 204, 6)


class Metered(ScriptedEngine):
    """The scripted team, which says that each request took its tokens and two seconds, half of the prompt cached."""

    def generate(self, requests: Any) -> list[Completion]:
        return [
            replace(answer, usage=Usage(len(request.ids), len(request.ids) // 2, len(answer.ids), 2.0))
            for request, answer in zip(requests, super().generate(requests), strict=True)
        ]


def episode(price: Price | None) -> EpisodeResult:
    run = BacktestRun(synthetic(), WINDOW)
    return run_all([play(make_team(), run, guard_limits(), 1, price=price)], Metered(codec(), expert_policies()))[0]


def test_a_price_is_per_million_and_a_cached_token_is_not_paid_twice() -> None:
    assert PRICE.of(Usage(prompt=1_000_000, cached=400_000, sampled=100_000)) == pytest.approx(
        0.6 * 3.0 + 0.4 * 0.3 + 0.1 * 15.0
    )
    assert Price().of(Usage(10, 5, 3, 1.0)) == 0.0


def test_what_is_booked_is_what_the_transcripts_say() -> None:
    played = episode(PRICE)
    decisions = [decision for _, decision in played.decisions]
    talks = [talk for decision in decisions for talk in decision.transcripts]
    assert played.ledger.run.tokens == sum(decision.usage.tokens for decision in decisions) > 0
    assert played.ledger.run.seconds == pytest.approx(sum(talk.usage.seconds for talk in talks))
    assert played.ledger.run.money == pytest.approx(math.fsum(decision.cost for decision in decisions))
    for role, spent in played.ledger.roles.items():
        assert spent.tokens == sum(talk.usage.tokens for talk in talks if talk.role == role)
        assert spent.money == pytest.approx(sum(PRICE.of(talk.usage) for talk in talks if talk.role == role))


class Failing(SayingEngine):
    """The n-th request fails for good."""

    def __init__(self, texts: Any, nth: int) -> None:
        super().__init__(texts)
        self.nth = nth

    def _say(self, request: Request) -> Completion:
        if len(self.requests) == self.nth:
            self.requests.append(request)
            return failed_completion("timed out after 3 tries")
        return super()._say(request)


def test_a_failed_request_ends_its_conversation_and_no_other() -> None:
    texts = {"manager": [ask("market_analyst"), submit(hold("C1", "long", 1.0))], "market_analyst": [analysis()]}
    of_analyst = decide(Failing(texts, 1))
    assert of_analyst.events == ["market_analyst#0: engine_failed: timed out after 3 tries"]
    assert of_analyst.orders and of_analyst.manager.valid
    of_manager = decide(Failing(texts, 0))
    assert of_manager.events == ["manager#0: engine_failed: timed out after 3 tries"] and of_manager.orders == []
