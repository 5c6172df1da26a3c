"""Settings of what a team thinks with: its engine, and what thinking may cost."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, JsonValue, model_validator

from backend.config.base import name_or_plugin
from backend.config.prices import shipped_price
from cryptosentinel.conversation.budget import Price
from cryptosentinel.llm.endpoint.providers import PROVIDERS, Provider, is_loopback, provider_at
from cryptosentinel.team_settings import Section

ENGINE_KINDS = ("local", "vllm", "openai_api", *PROVIDERS)
Money = Annotated[float, Field(ge=0.0, le=1e6)]
# Fields of a request that settings and the team decide, or that would hold a secret.
_RESERVED = (
    "model", "messages", "system", "tools", "tool_choice", "stream", "temperature", "seed", "max_tokens", "n",
    "max_completion_tokens", "parallel_tool_calls", "response_format",
)  # fmt: skip
_SECRETS = ("api_key", "apikey", "authorization", "x-api-key", "token", "password")


class EngineConfig(Section):
    """What the roles' models run on. The scripted team needs none of it."""

    kind: Annotated[str, name_or_plugin("engine", ENGINE_KINDS)] = Field(
        "local",
        description="where models answer: local, in this process; vllm, on vLLM servers; the endpoint of a provider: "
        "openai, anthropic, google, openrouter, ollama, vllm_chat, llama_cpp, lm_studio; openai_api, any other like "
        "OpenAI's; or an engine of your own as my_module:engine. Only local and vllm can train",
    )
    model: str = Field(
        "", description="model of the team 'model', which was not trained: a folder, or its name at the endpoint"
    )
    url: str = Field(
        "", description="endpoint, as http://localhost:8000/v1; empty: the provider's own, and vllm starts one"
    )
    extra_body: dict[str, JsonValue] = Field(
        default_factory=dict, description='endpoint: further fields of each request, as {reasoning_effort = "low"}'
    )
    python: str = Field("", description="vllm: the Python that has vLLM, to start a server with; empty: this one")
    gpu_share: float = Field(
        0.0, ge=0.0, le=0.95, description="vllm started here: share of a GPU that it reserves; 0: its default, 0.9"
    )
    context_tokens: int = Field(
        0, ge=0, le=10_000_000, description="tokens of a conversation at most, the oldest results go; 0: as the model"
    )
    concurrency: int = Field(16, ge=1, le=1024, description="requests that a server has at a time")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.url and self.kind == "local":
            raise ValueError(f"url = {self.url} is given, but kind = local runs here: set kind, or leave url out")
        secret = next((name for name in self.extra_body if name.lower() in _SECRETS), None)
        if secret is not None:
            raise ValueError(
                f"extra_body.{secret} would keep a secret in the run's record: put the key into the environment"
            )
        reserved = next((name for name in self.extra_body if name in _RESERVED), None)
        if reserved is not None:
            raise ValueError(f"extra_body.{reserved} is decided by other settings: leave it out")
        if self.gpu_share and (self.kind != "vllm" or self.url):
            raise ValueError(
                f"gpu_share = {self.gpu_share:g} is of a vLLM server that is started here, but "
                f"{f'url = {self.url} names one' if self.url else f'kind = {self.kind}'}: leave gpu_share out"
            )
        return self

    @property
    def own(self) -> bool:
        """Whether it is an engine of the user's own."""
        return ":" in self.kind

    @property
    def at_endpoint(self) -> bool:
        """Whether an endpoint answers, or an engine of the user's own, of which only its text is known."""
        return self.kind not in ("local", "vllm")

    @property
    def endpoint(self) -> Provider | None:
        """The provider that answers; None for an address that is not a provider's."""
        if self.kind == "openai_api":
            return provider_at(self.url) if self.url else PROVIDERS["openai"]
        return PROVIDERS.get(self.kind)

    def price(self, model: str) -> Price | None:
        """The shipped price of `model` where this engine runs it; None where it is not known.

        What runs on machines of your own has the price 0: a local model, vLLM, and servers at this very machine.
        """
        if self.own:  # only its author knows
            return None
        there = self.endpoint
        if not self.at_endpoint or (there is not None and not there.paid) or is_loopback(self.url):
            return Price()
        own = there is not None and (not self.url or provider_at(self.url) is there)
        return shipped_price(there.name, model) if own and there is not None else None


class BudgetConfig(Section):
    """What thinking costs, and may cost."""

    prices: dict[str, tuple[Money, Money, Money]] = Field(
        default_factory=dict,
        description="by model: quote currency per million tokens read, read from the cache, and sampled; before the "
        "shipped table",
    )
    max_cost: float = Field(
        5.0,
        ge=0,
        le=1e9,
        description="money, by these prices, that a program's requests to a provider may cost in all; the most that a "
        "request can cost is held before it is sent, and none that could pass the limit is; 0: any amount",
    )

    def price(self, model: str, shipped: Price | None) -> Price | None:
        """The user's own price of a model, or else the `shipped` one; None where neither is known."""
        stated = self.prices.get(model)
        return shipped if stated is None else Price(*stated)
