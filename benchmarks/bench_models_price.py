"""A decision costs what the table says: one decision of the team at a local server of each paid provider's kind.

The servers (`tests/provider_servers.py`) refuse, think and count as the provider's own does. What the ledger says
that a decision cost, by the shipped price of a well-known model, is set against the price list itself
(`backend/config/prices.toml`) times the tokens that the server counted. No provider is asked.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tomllib
from pathlib import Path

import backend.config.prices as prices
from backend.config.engine import EngineConfig
from benchmarks.run import Result
from cryptosentinel.conversation.budget import Budget, Ledger
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.anthropic_api.engine import AnthropicEngine
from cryptosentinel.llm.endpoint.engine import EndpointSettings
from cryptosentinel.llm.engine import Sampling
from cryptosentinel.llm.openai_api.engine import OpenAIEngine
from cryptosentinel.scheduler import run_all
from cryptosentinel.team import Team
from tests.mock_endpoint import serve
from tests.provider_servers import SERVERS, AnthropicKind
from tests.standard_limits import guard_limits
from tests.team_scenes import codec, hand_made_account, standard_team, synthetic

KEY = "CRYPTOSENTINEL_BENCH_KEY"
# By the kind of server: the provider and model that is tried, and where the price list has it.
MODELS = {
    "openai": ("openai", "gpt-4.1-mini", ("openai", "gpt-4.1-mini")),
    "openai, a model that thinks": ("openai", "gpt-5-mini", ("openai", "gpt-5-mini")),
    "anthropic": ("anthropic", "claude-haiku-4-5", ("anthropic", "claude-haiku-4-5")),
    "anthropic, a model that thinks": ("anthropic", "claude-sonnet-4-5", ("anthropic", "claude-sonnet-4-5")),
    "google": ("google", "gemini-2.5-flash", ("google", "gemini-2.5-flash")),
    "openrouter": ("openrouter", "anthropic/claude-haiku-4.5", ("anthropic", "claude-haiku-4-5")),
}
NEAR = 1e-9  # of the whole: rounding


def run() -> list[Result]:
    """The rows `models.price.*`; values are USD a thousand decisions."""
    os.environ.setdefault(KEY, "sk-none-0123456789abcdef")
    table = tomllib.loads(Path(prices.__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    rows: list[Result] = []
    for kind, (provider, model, (section, entry)) in MODELS.items():
        if provider == "anthropic" and importlib.util.find_spec("anthropic") is None:
            print("no row of Anthropic: its SDK is not installed", file=sys.stderr)
            continue
        said, counted, tokens = _decision(kind, provider, model, table[section][entry])
        name = f"{model.partition('/')[2] or model}".replace(".", "_")
        rows.append(
            {
                "name": f"models.price.{provider}.{name}",
                "value": 1000 * said,
                "unit": "USD a thousand decisions",
                "against": f"{1000 * counted:.6g} by the list of {table['date']}, {tokens}",
                "ratio": said / counted,
                "target": "1",
                "met": abs(said / counted - 1.0) < NEAR,
            }
        )
    return rows


def _decision(kind: str, provider: str, model: str, listed: list[float]) -> tuple[float, float, str]:
    """Money that the ledger says, money by the list and the server's count, and that count in words."""
    brain = SERVERS[kind]()
    price = EngineConfig.model_validate({"provider": provider, "model": model}).price(model)
    if price is None:
        raise RuntimeError(f"{model} of {provider} has no price")
    ledger = Ledger(Budget(price=price))
    engine_of = AnthropicEngine if isinstance(brain, AnthropicKind) else OpenAIEngine
    with serve(brain) as endpoint:
        settings = EndpointSettings(timeout=20.0, retries=1)
        engine = engine_of(codec(), endpoint.url, model, key_variable=KEY, settings=settings)
        try:
            view = synthetic().view(200)
            team = Team(codec(), engine.policy_version, standard_team(sampling=Sampling(0.25, 512)))
            task = team.decide(
                view, hand_made_account(view, {}), view.symbols[:1], Guard(guard_limits()), 1, ledger=ledger
            )
            [decision] = run_all([task], engine)
        finally:
            engine.close()
    if not decision.manager.valid:
        raise RuntimeError(f"no valid decision at {kind}: {decision.events}")
    read, cached, sampled, *more = listed
    counter = brain.counter
    fresh = counter.prompt - counter.cached - counter.written
    money = fresh * read + counter.cached * cached + counter.written * (more[0] if more else read)
    money += counter.sampled * sampled
    counts = f"{counter.prompt} read, {counter.cached} of them cached, {counter.sampled} sampled"
    return ledger.run.money, money / 1e6, counts
