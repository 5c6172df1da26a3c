"""Settings of what a team thinks with: its engine, and what thinking may cost."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, JsonValue, model_validator

from backend.config.base import Section
from backend.config.prices import shipped_price
from cryptosentinel.conversation.budget import Price
from cryptosentinel.llm.endpoint.providers import AUTOMATIC, PROVIDERS, Provider, ProviderName, is_loopback, provider_at

Money = Annotated[float, Field(ge=0.0, le=1e6)]
# Fields of a request that settings and the team decide, or that would hold a secret.
_RESERVED = (
    "model", "messages", "system", "tools", "tool_choice", "stream", "temperature", "seed", "max_tokens", "n",
    "max_completion_tokens", "parallel_tool_calls", "response_format",
)  # fmt: skip
_SECRETS = ("api_key", "apikey", "authorization", "x-api-key", "token", "password")


class EngineConfig(Section):
    """What the roles' models run on. The scripted team needs none of it."""

    provider: Literal["", ProviderName] = Field(
        "", description="whose endpoint answers: sets kind, url and key_variable where these are not given"
    )
    kind: Literal["local", "vllm", "openai_api", "own"] = Field(
        "local",
        description="in this process, on vLLM servers, at any endpoint like OpenAI's, or an engine of your own (the "
        "last two not for training)",
    )
    plugin: str = Field("", description="own: the engine, as my_module:engine or by the name of an installed one")
    model: str = Field(
        "", description="model of the team 'model', which was not trained: a folder, or its name at the endpoint"
    )
    url: str = Field(
        "", description="endpoint, as http://localhost:8000/v1; empty: the provider's own, and vllm starts one"
    )
    empty_think: bool = Field(
        False,
        description="begin answers with an empty <think> block, which turns thinking off in Qwen3's hybrid models",
    )
    key_variable: str = Field(
        AUTOMATIC,
        description="endpoint: environment variable that holds its key; 'auto': the provider's usual one, and none at "
        "another url; empty: it wants none",
    )
    extra_body: dict[str, JsonValue] = Field(
        default_factory=dict, description='endpoint: further fields of each request, as {reasoning_effort = "low"}'
    )
    python: str = Field("", description="vllm: the Python that has vLLM, to start a server with; empty: this one")
    gpu_share: float = Field(
        0.0, ge=0.0, le=0.95, description="vllm started here: share of a GPU that it reserves; 0: its default, 0.9"
    )
    constrained: bool | Literal["auto"] = Field(
        "auto",
        description="local, vllm: let models sample only what their tools' schemas allow; auto: those that were not "
        "trained here; never in training",
    )
    context_tokens: int = Field(
        0, ge=0, le=10_000_000, description="tokens of a conversation at most, the oldest results go; 0: as the model"
    )
    timeout: float = Field(
        120.0, gt=0.0, le=3600.0, description="seconds to wait for one answer of a server, and the longest Retry-After"
    )
    concurrency: int = Field(16, ge=1, le=1024, description="requests that a server has at a time")

    @model_validator(mode="before")
    @classmethod
    def _kind_of_provider(cls, values: Any) -> Any:
        """A provider is asked by the engine for endpoints, where no other kind is given."""
        known = isinstance(values, dict) and values.get("provider") in PROVIDERS
        return {**values, "kind": "openai_api"} if known and "kind" not in values else values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.provider and self.kind != "openai_api":
            raise ValueError(
                f"provider = {self.provider} is asked by kind = openai_api, not {self.kind}: leave one of them out"
            )
        if (self.kind == "own") != bool(self.plugin):
            raise ValueError(
                "kind = own needs plugin, such as my_module:engine"
                if not self.plugin
                else f"plugin = '{self.plugin}' is of kind = own, not of kind = {self.kind}: set kind, or leave it out"
            )
        if self.at_endpoint and self.constrained is True:
            raise ValueError(
                "constrained = true needs an engine that takes a grammar: set kind to local or vllm, or leave "
                "constrained out"
            )
        if self.url and self.kind == "local":
            raise ValueError(f"url = {self.url} is given, but kind = local runs here: set kind, or leave url out")
        secret = next((name for name in self.extra_body if name.lower() in _SECRETS), None)
        if secret is not None:
            raise ValueError(
                f"extra_body.{secret} would keep a secret in the run's record: name the key's variable in key_variable"
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
    def at_endpoint(self) -> bool:
        """Whether an endpoint answers, or an engine of the user's own, of which only its text is known."""
        return self.kind in ("openai_api", "own")

    @property
    def endpoint(self) -> Provider | None:
        """The provider that answers; None for an address that is no provider's."""
        if self.provider:
            return PROVIDERS[self.provider]
        if not self.at_endpoint or self.kind == "own":
            return None
        if self.url:
            return provider_at(self.url)
        return PROVIDERS["openai"]

    def price(self, model: str) -> Price | None:
        """The shipped price of `model` where this engine runs it; None where it is not known.

        What runs on machines of one's own has the price 0: a local model, vLLM, and servers at this very machine.
        """
        if self.kind == "own":  # only its author knows
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
