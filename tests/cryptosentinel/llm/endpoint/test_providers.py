"""Servers that behave as each provider does pass one suite: the team decides, and the decision costs what is stated."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from cryptosentinel.conversation.budget import Ledger, Price
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.endpoint.engine import EndpointEngine
from cryptosentinel.llm.engine import Sampling
from cryptosentinel.scheduler import run_all
from cryptosentinel.team import Team, TeamDecision
from simulator.errors import UserError
from tests.mock_endpoint import MODEL, Endpoint, Reply, serve
from tests.provider_servers import REFUSALS, SERVERS
from tests.standard_limits import guard_limits
from tests.team_scenes import codec, hand_made_account, standard_team, synthetic

KEY = "sk-test-0123456789abcdef"
PRICE = Price(2.0, 0.5, 8.0)


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    monkeypatch.setenv("TEST_ENDPOINT_KEY", KEY)
    made: list[EndpointEngine] = []

    def build(endpoint: Endpoint) -> EndpointEngine:
        made.append(
            EndpointEngine(codec(), endpoint.url, MODEL, key_variable="TEST_ENDPOINT_KEY", timeout=20.0, retries=1)
        )
        return made[-1]

    yield build
    for engine in made:
        engine.close()


def decide(engine: EndpointEngine, ledger: Ledger, seed: int = 1) -> TeamDecision:
    """One decision on one coin, sampled at a temperature that not every model takes."""
    market = synthetic()
    view = market.view(200)
    team = Team(codec(), engine.policy_version, standard_team(sampling=Sampling(0.25, 512)))
    account = hand_made_account(view, {})
    task = team.decide(view, account, view.symbols[:1], Guard(guard_limits()), seed, ledger=ledger)
    [decision] = run_all([task], engine)
    return decision


def test_the_team_decides_and_pays_what_the_server_states(server: str, engines: Any) -> None:
    brain = SERVERS[server]()
    with serve(brain) as endpoint:
        engine = engines(endpoint)
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


def test_thoughts_are_no_part_of_an_answer_and_have_room(server: str, engines: Any) -> None:
    brain = SERVERS[server]()
    if not brain.thoughts:
        return
    with serve(brain) as endpoint:
        engine = engines(endpoint)
        decision = decide(engine, Ledger())
        assert decision.manager.valid
        said = codec().decode(decision.manager.ids)
        assert "trend first" not in said and "<think>" not in said
        if server not in ("ollama", "vllm", "openrouter", "llama.cpp without --jinja"):
            assert decision.usage.reasoning > 0


def test_the_key_is_nowhere_and_goes_nowhere_else(server: str, engines: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpcore2").setLevel(logging.INFO)
    brain = SERVERS[server]()
    with serve(brain) as endpoint, serve() as elsewhere:
        engine = engines(endpoint)
        decision = decide(engine, Ledger())
        assert KEY not in repr((decision, engine, engine.notes)) and KEY not in caplog.text
        endpoint.answering = lambda body: Reply(b"", 307, {"Location": f"{elsewhere.url}/chat/completions"})
        with pytest.raises(UserError, match=r"redirects to .*, where no key is sent"):
            decide(engine, Ledger())
        assert elsewhere.heard == []
