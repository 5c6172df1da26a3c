"""Several questions at once, to several roles or about several coins: who is asked, in which order, and what binds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cryptosentinel.agents.manager import ASK_SEVERAL, MAX_QUESTIONS
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.llm.engine import Completion, Request
from cryptosentinel.protocol.tool_calls import render_call
from tests.team_scenes import (
    SayingEngine,
    analysis,
    ask,
    codec,
    decide,
    execution,
    held_after,
    hold,
    submit,
    verdict,
)

LONG: dict[str, Any] = {"symbol": "C1", "side": "long", "exposure": 1.0}


def several(*questions: dict[str, Any]) -> str:
    return render_call(ASK_SEVERAL, {"questions": list(questions)})


def question(role: str, **more: Any) -> dict[str, Any]:
    return {"ask": role, "symbol": "C1", **more}


def comparable(transcript: Transcript) -> tuple[Any, ...]:
    return transcript.role, transcript.ordinal, transcript.brief, transcript.answer, transcript.ids


def test_all_questions_go_out_at_once_and_bind_as_single_ones_do() -> None:
    sub_agents = {"market_analyst": [analysis()], "risk_analyst": [verdict("reduce", 0.5)], "trader": [execution(1, 2)]}
    final = submit(hold("C1", "long", 1.0))
    asked = [question("market_analyst"), question("risk_analyst", **LONG), question("trader", **LONG)]
    engine = Batches({"manager": [several(*asked), final], **sub_agents})
    together = decide(engine)
    first, *between, last = engine.batches
    assert (first, last) == (["manager"], ["manager"])
    assert sorted(role for batch in between for role in batch) == ["market_analyst", "risk_analyst", "trader"]
    one_by_one = [ask("market_analyst"), ask("risk_analyst", **LONG), ask("trader", **LONG), final]
    apart = decide(SayingEngine({"manager": one_by_one, **sub_agents}))
    assert together.orders == apart.orders and together.rulings == apart.rulings
    assert [comparable(one) for one in together.transcripts[1:]] == [comparable(one) for one in apart.transcripts[1:]]
    assert held_after(together.orders)["AAAUSDT"] == pytest.approx(0.5)


class Batches(SayingEngine):
    """Keeps the roles of each batch."""

    def __init__(self, texts: Any) -> None:
        super().__init__(texts)
        self.batches: list[list[str]] = []

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.batches.append([request.role for request in requests])
        return super().generate(requests)


def test_what_the_manager_hears_names_each_question() -> None:
    asked = [question("market_analyst"), question("market_analyst", symbol="C2")]
    engine = SayingEngine({"manager": [several(*asked), submit()], "market_analyst": ["No.", analysis(1.0, 0.0, 0.0)]})
    decide(engine)
    heard = codec().decode(engine.requests[-1].ids)
    assert '{"answers": [{"ask": "market_analyst", "symbol": "C1", "error": "no valid answer"}, ' in heard
    assert '{"ask": "market_analyst", "symbol": "C2", "lean": "strong up"' in heard


def test_the_strictest_verdict_holds_whichever_is_answered_first() -> None:
    # The first question's analyst looks something up first, so the second is answered before it.
    look = render_call("get_risk", {})
    for first, second, allowed in (("veto", "approve", 0.0), ("approve", "veto", 0.0), ("approve", "approve", 1.0)):
        said = {
            "manager": [
                several(question("risk_analyst", **LONG), question("risk_analyst", **LONG)),
                submit(hold("C1", "long", 1.0)),
            ],
            "risk_analyst": [look, verdict(second), verdict(first)],
        }
        decision = decide(SayingEngine(said))
        assert [one.ordinal for one in decision.transcripts[1:]] == [0, 1]
        assert [(one.answer or {})["verdict"] for one in decision.transcripts[1:]] == [first, second]
        assert held_after(decision.orders)["AAAUSDT"] == pytest.approx(allowed)


@pytest.mark.parametrize(
    ("questions", "code"),
    [
        ([question("market_analyst")], "bad_arguments"),  # one is no several
        ([question("market_analyst")] * (MAX_QUESTIONS + 1), "bad_arguments"),
        ([question("market_analyst"), question("risk_analyst")], "bad_arguments"),  # about which position?
        ([question("market_analyst"), question("market_analyst", **LONG)], "bad_arguments"),
        ([question("market_analyst"), question("manager")], "bad_arguments"),
        ([question("market_analyst"), {"symbol": "C1"}], "bad_arguments"),
        ([question("market_analyst"), "C1"], "bad_arguments"),
        ([question("market_analyst"), question("market_analyst", symbol="C9")], "unknown_symbol"),
    ],
)
def test_questions_that_cannot_be_asked_ask_nobody(questions: list[Any], code: str) -> None:
    decision = decide(SayingEngine({"manager": [several(*questions)]}))
    assert len(decision.transcripts) == 1 and decision.events[0].startswith(f"manager#0: {code}: ")


def test_a_team_asks_only_its_own_roles_at_once() -> None:
    asked = [question("market_analyst"), question("market_analyst", symbol="C2")]
    said = {"manager": [several(*asked), submit()], "market_analyst": [analysis(), analysis()]}
    assert decide(SayingEngine(said), roles=("market_analyst",)).events == []
    other = [question("market_analyst"), question("trader", **LONG)]
    refused = decide(SayingEngine({"manager": [several(*other)]}), roles=("market_analyst", "risk_analyst"))
    assert refused.events[0].startswith("manager#0: bad_arguments: ask_several: questions.1")
