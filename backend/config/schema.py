"""The configuration as one typed document: every section, every setting."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from backend.config.base import Fraction, Rate, suggestion
from backend.config.engine import BudgetConfig, EngineConfig
from backend.config.market import CostsConfig, MarketConfig, VenueConfig
from backend.config.training import TrainingConfig
from cryptosentinel.teachers import Teacher
from cryptosentinel.team_settings import Names, Section, TeamConfig
from simulator.errors import UserError

SCRIPTED = "scripted"
PROMPTED = "model"  # a model that was not trained here: only its prompts say what to do


def model_named(team: str) -> str:
    """The model that a team called `model=NAME` names, so that several of them can be compared; empty for others."""
    kind, equals, model = team.partition("=")
    return model.strip() if equals and kind == PROMPTED else ""


# What teams can be measured against: the strategies of `simulator.strategies`, by name, and two that are made for the
# occasion. They are listed so that reading a configuration loads no simulator; a test compares the lists.
BASELINES = (
    "always_short", "donchian_breakout", "ema_cross", "equal_weight", "flat", "hold", "rsi_reversion",
    "sma_cross", "volatility_target", "matched_random", "oracle",
)  # fmt: skip


class ConfigError(UserError):
    """A config that cannot be used. The message names file, key, value and what is allowed."""


class GuardConfig(Section):
    """The hard limits that no model can pass."""

    max_exposure: float = Field(1.0, gt=0.0, le=10.0, description="cap on |notional| / equity of one symbol")
    max_gross_exposure: float = Field(1.0, gt=0.0, le=10.0, description="cap on the sum of |notional| / equity")
    max_drawdown: float = Field(
        0.5, gt=0.0, le=1.0, description="drawdown at which all positions are closed, to the end of the run"
    )
    daily_loss: float = Field(
        0.2,
        gt=0.0,
        le=1.0,
        description="loss in a UTC day at which all positions are closed for 24 hours, at least until that day ends",
    )
    max_daily_turnover: float = Field(
        8.0,
        ge=0.0,
        le=10_000.0,
        description="cap on the notional traded in 24 hours / equity, closing what is held included; 0: none",
    )


class NanoConfig(Section):
    """The small model that the project makes from its own teacher's transcripts."""

    hidden_size: int = Field(128, ge=16, le=2048, multiple_of=16, description="width of the model")
    layers: int = Field(4, ge=1, le=48, description="number of layers")
    decisions: int = Field(2500, ge=10, le=1_000_000, description="decisions to transcribe for the warm start")
    teacher_share: Fraction = Field(0.3, description="share of decisions that follow the teacher; others are random")
    teacher: Teacher = Field(
        "expert",
        description="rules of the teacher: expert; skip_trades: expert, and then a third of its changes is left out at "
        "random; random_all: so too, and it reads one of trend, news and funding at random, draws verdicts, orders and "
        "whom it asks, and asks for full positions",
    )
    steps: int = Field(700, ge=1, le=1_000_000, description="steps of the warm start")


class EvaluationConfig(Section):
    """How a policy is measured on held-out history."""

    windows: int = Field(24, ge=2, le=10_000, description="held-out windows")
    decisions_per_window: int = Field(8, ge=1, le=10_000, description="decisions in each window")
    states: int = Field(
        0,
        ge=0,
        le=100_000,
        description="held-out states of a simulated market on which the likeliest decisions of the trained team, its "
        "beginning and its teacher are scored over common scenarios; 0: none",
    )
    baselines: Names = Field(
        ("hold", "flat", "equal_weight", "always_short", "sma_cross", "volatility_target", "matched_random", "oracle"),
        description="strategies to compare with, as a list or 'a,b'; the oracle only where the truth is known",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for number, name in enumerate(self.baselines):
            if name not in BASELINES:
                raise ValueError(f"no baseline '{name}'{suggestion(name, BASELINES)}; there are {', '.join(BASELINES)}")
            if name in self.baselines[:number]:
                raise ValueError(f"the baseline '{name}' is named twice")
        return self


class SftConfig(Section):
    """Supervised specialisation of the roles: conversations of a team, the best of K kept, and what is learnt of
    them."""

    states: int = Field(600, ge=2, le=1_000_000, description="states of the training part that are rolled out")
    steps: int = Field(300, ge=1, le=1_000_000, description="steps of the supervised training of each role")
    learning_rate: Rate = Field(2e-3, description="learning rate")
    score_states: int = Field(400, ge=2, le=100_000, description="states of a held-out score")


class StoreConfig(Section):
    """What of a run stays in the store."""

    keep: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="newest steps of a training whose conversations stay in the store; 0: all. All else stays anyway",
    )


RECORDED_FEED = "recorded"  # the feed of paper sessions on recorded bars


class PaperConfig(Section):
    """Paper trading: the team on live data, with the simulator's own exchange as the broker."""

    feed: str = Field(
        RECORDED_FEED, description="where data comes from: recorded, or an exchange by its name in ccxt, as binance"
    )
    url: str = Field("", description="server to ask instead of the exchange's own, as http://localhost:8080")
    speed: float = Field(
        0.0, ge=0.0, le=1e6, description="how much faster than real time recorded data comes; 0: as fast as it is used"
    )
    history_bars: int = Field(500, ge=130, le=100_000, description="bars that are known before the first decision")
    decision_timeout: float = Field(
        60.0,
        gt=0.0,
        le=86_400.0,
        description="seconds of real time after which a model that still thinks is left; the decision is no change",
    )


class PluginsConfig(Section):
    """The user's own additions to the program."""

    roles: Names = Field((), description="roles of your own, as 'my_module:ROLE,...'; `team.roles` names them by key")


class Config(Section):
    """All sections."""

    market: MarketConfig = Field(default_factory=MarketConfig)
    costs: CostsConfig = Field(default_factory=CostsConfig)
    venue: VenueConfig = Field(default_factory=VenueConfig)
    guard: GuardConfig = Field(default_factory=GuardConfig)
    team: TeamConfig = Field(default_factory=TeamConfig)
    engine: EngineConfig = Field(default_factory=EngineConfig)
    budget: BudgetConfig = Field(default_factory=BudgetConfig)
    nano: NanoConfig = Field(default_factory=NanoConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    sft: SftConfig = Field(default_factory=SftConfig)
    paper: PaperConfig = Field(default_factory=PaperConfig)
    store: StoreConfig = Field(default_factory=StoreConfig)
    plugins: PluginsConfig = Field(default_factory=PluginsConfig)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.nano.teacher != "expert" and self.team.portfolio:
            raise ValueError(
                f"nano.teacher = '{self.nano.teacher}' decides coin by coin: choose expert, or leave team.portfolio out"
            )
        thinks = self.team.thinking_tokens
        if thinks and self.engine.at_endpoint:
            raise ValueError(
                f"team.thinking_tokens = {thinks} is of models that answer here or on vLLM: leave it out at an "
                "endpoint, whose model decides that itself"
            )
        return self

    # Every draw is by `training.seed`; the parts of a run are apart, so that none repeats the draws of another.
    @property
    def nano_seed(self) -> int:
        """Of nano's first weights, transcripts and batches."""
        return self.training.seed + 10

    @property
    def sft_seed(self) -> int:
        """Of the states, the sampling, the batches and the resamples of `sft`."""
        return self.training.seed + 4

    @property
    def evaluation_seed(self) -> int:
        """Of the sampling, the random baseline and the resamples of an evaluation."""
        return self.training.seed + 2

    def coins_of_a_decision(self) -> int:
        """One, or of a portfolio as many as are named or generated; of data without `market.symbols` as many as would
        be generated."""
        return (len(self.market.symbols) or self.market.coins) if self.team.portfolio else 1

    def to_dict(self) -> dict[str, Any]:
        """All values as JSON knows them; `config_from_dict` is the inverse."""
        return self.model_dump(mode="json")
