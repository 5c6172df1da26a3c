"""Servers that behave as each provider does pass one suite: the team decides, and the decision costs what is stated."""

from __future__ import annotations

import pytest

from cryptosentinel.conversation.budget import Ledger, Price
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.endpoint.engine import EndpointEngine
from cryptosentinel.llm.engine import Sampling
from cryptosentinel.scheduler import run_all
from cryptosentinel.team import Team, TeamDecision
from tests.endpoint_scenes import KEY, Make
from tests.mock_endpoint import serve
from tests.provider_servers import REFUSALS, SERVERS
from tests.standard_limits import guard_limits
from tests.team_scenes import codec, hand_made_account, standard_team, synthetic

PRICE = Price(2.0, 0.5, 8.0)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def decide(engine: EndpointEngine, ledger: Ledger, seed: int = 1) -> TeamDecision:
    """One decision on one coin, sampled at a temperature that not every model takes."""
    market = synthetic()
    view = market.view(200)
    team = Team(codec(), engine.policy_version, standard_team(sampling=Sampling(0.25, 512)))
    account = hand_made_account(view, {})
    task = team.decide(view, account, view.symbols[:1], Guard(guard_limits()), seed, ledger=ledger)
    [decision] = run_all([task], engine)
    return decision


def test_the_team_decides_and_pays_what_the_server_states(server: str, make: Make) -> None:
    brain = SERVERS[server]()
    with serve(brain) as endpoint:
        engine = make(endpoint, retries=1)
        engine.check()
        ledger = Ledger(PRICE)
        first = decide(engine, ledger)
        assert first.manager.valid and first.manager.answer is not None, first.events
        assert len(first.transcripts) == 2 and not first.events and first.orders
        assert brain.counter.refused == REFUSALS.get(server, [])  # each property once
        asked = len(endpoint.chats)
        second = decide(engine, ledger, seed=2)
        assert second.manager.valid and len(endpoint.chats) - asked == 3  # all is known: three answers
        if brain.counts:
            stated = brain.counter
            money = (
                (stated.prompt - stated.cached) * PRICE.prompt
                + stated.cached * PRICE.cached
                + stated.sampled * PRICE.sampled
            )
            assert ledger.run.money == pytest.approx(money / 1e6)
            assert ledger.run.calls == stated.answered
        assert len(engine.notes) == len(set(engine.notes)) >= len(REFUSALS.get(server, []))
        assert all(KEY in str(one.headers) for one in endpoint.heard)
        said = codec().decode(first.manager.ids)  # thoughts are no part of an answer, and have room
        assert "trend first" not in said and "<think>" not in said
        if brain.thoughts and server not in ("ollama", "vllm", "openrouter", "llama.cpp without --jinja"):
            assert first.usage.reasoning > 0
