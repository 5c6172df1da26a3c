"""Settings of what a team thinks with: its engine, and what thinking may cost."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from backend.config.base import Section
from cryptosentinel.conversation.budget import Budget, Price, SpendingLimits
from simulator.errors import UserError

_NO_LIMITS = SpendingLimits()

Money = Annotated[float, Field(ge=0.0, le=1e6)]


class EngineConfig(Section):
    """What the roles' models run on. The scripted team needs none of it."""

    kind: Literal["local", "vllm", "openai_api"] = Field(
        "local",
        description="in this process, on vLLM servers, or at any endpoint like OpenAI's (not for training)",
    )
    model: str = Field(
        "", description="model of the team 'model', which was not trained: a folder, or its name at the endpoint"
    )
    url: str = Field(
        "", description="endpoint, as http://localhost:8000/v1; empty: vllm starts its own, openai_api is OpenAI"
    )
    served_model: str = Field(
        "", description="vllm at a URL: what the server calls the model; empty: as `model` is given here"
    )
    empty_think: bool = Field(
        False,
        description="begin answers with an empty <think> block, which turns thinking off in Qwen3's hybrid models",
    )
    key_variable: str = Field(
        "OPENAI_API_KEY", description="openai_api: environment variable that holds its key; empty: it wants none"
    )
    python: str = Field("", description="vllm: the Python that has vLLM, to start a server with; empty: this one")
    gpu_share: float = Field(
        0.0, ge=0.0, le=0.95, description="vllm started here: share of a GPU that it reserves; 0: its default, 0.9"
    )
    constrained: bool = Field(
        False, description="let models sample only what their tools' schemas allow; not in training"
    )
    context_tokens: int = Field(
        0, ge=0, le=10_000_000, description="tokens of a conversation at most, the oldest results go; 0: as the model"
    )
    timeout: float = Field(120.0, gt=0.0, le=3600.0, description="seconds to wait for one answer of a server")
    retries: int = Field(4, ge=0, le=20, description="further tries of a request that failed, with pauses that grow")
    concurrency: int = Field(16, ge=1, le=1024, description="requests that a server has at a time")
    requests_per_minute: int = Field(0, ge=0, le=1_000_000, description="at most so many; 0: any number")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "openai_api" and self.constrained:
            raise ValueError(
                "constrained = true needs an engine that takes a grammar: set kind to local or vllm, or leave "
                "constrained out"
            )
        if self.url and self.kind == "local":
            raise ValueError(f"url = {self.url} is given, but kind = local runs here: set kind, or leave url out")
        if self.gpu_share and (self.kind != "vllm" or self.url):
            raise ValueError(
                f"gpu_share = {self.gpu_share:g} is of a vLLM server that is started here, but "
                f"{f'url = {self.url} names one' if self.url else f'kind = {self.kind}'}: leave gpu_share out"
            )
        return self


class SpendingConfig(Section):
    """At most so much; 0: any amount. What is spent can pass a limit by one request."""

    calls: int = Field(_NO_LIMITS.calls, ge=0, le=1_000_000_000, description="requests to the engine")
    tokens: int = Field(_NO_LIMITS.tokens, ge=0, le=1_000_000_000_000, description="tokens read and sampled")
    seconds: float = Field(_NO_LIMITS.seconds, ge=0.0, le=1e9, description="seconds waited for answers")
    money: float = Field(_NO_LIMITS.money, ge=0.0, le=1e9, description="money, in quote currency, by `budget.prices`")

    def limits(self) -> SpendingLimits:
        """As the team knows them."""
        return SpendingLimits(self.calls, self.tokens, self.seconds, self.money)


class BudgetConfig(Section):
    """What thinking may cost in a backtest: where nothing is left, decisions are *no change*. Days are the market's."""

    decision: SpendingConfig = Field(default_factory=SpendingConfig, description="of one decision")
    day: SpendingConfig = Field(default_factory=SpendingConfig, description="of one day")
    run: SpendingConfig = Field(default_factory=SpendingConfig, description="of the whole run of one team")
    prices: dict[str, tuple[Money, Money, Money]] = Field(
        default_factory=dict,
        description="by model: quote currency per million tokens read, read from the cache, and sampled",
    )

    def budget(self, model: str) -> Budget:
        """The budget of a team that thinks with `model`. Raises `UserError` for a limit on money without a price."""
        price = self.prices.get(model)
        spans = {"decision": self.decision, "day": self.day, "run": self.run}
        limited = [name for name, span in spans.items() if span.money]
        if limited and price is None:
            raise UserError(
                f"budget.{limited[0]}.money is set, but budget.prices has no price of the model '{model}': add "
                f'"{model}" = [read, cached, sampled] to [budget.prices], or leave the limit out'
            )
        return Budget(
            self.decision.limits(), self.day.limits(), self.run.limits(), Price() if price is None else Price(*price)
        )
