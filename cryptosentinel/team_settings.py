"""What a team is set to: the section `team` of the configuration, and what its model adds. The same for its backtests,
its training and its paper trading."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from cryptosentinel.llm.engine import Sampling

# Tokens of an answer: a decision of nano's is at most 50 of its own; one on four coins is 117 to 249 of a language
# model's, with room for some prose before it.
SHORT_ANSWER, FULL_ANSWER, LEAST_ANSWER = 64, 512, 8
LEAST_THOUGHT = 32  # with what opens and closes it, up to ten tokens


def split_names(text: str) -> tuple[str, ...]:
    """The parts of a list with commas: 'A, B' is ('A', 'B')."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def split_value(value: Any) -> Any:
    """A text with commas and a list as a tuple; anything else is left to the type's check."""
    if isinstance(value, str):
        return split_names(value)
    return tuple(value) if isinstance(value, list) else value


Names = Annotated[tuple[str, ...], BeforeValidator(split_value)]


class Section(BaseModel):
    """Base of all sections: frozen, no unknown keys, no silent conversion of types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class TeamConfig(Section):
    """How the team decides."""

    horizon_bars: int = Field(18, ge=1, le=1000, description="bars over which a decision is judged")
    decide_every: int = Field(6, ge=1, le=1000, description="bars between two decisions in an evaluation")
    roles: Names = Field(
        ("market_analyst", "risk_analyst", "trader"), description="sub-agents that the manager may ask, as 'A,B'"
    )
    inherit_tools: bool = Field(
        True,
        description="the manager looks up itself what the sub-agents would that roles leaves out; false: nobody "
        "knows it, so that what a role knows goes with it",
    )
    tools: Names = Field(
        (), description="tools of your own, each with the role that gets it, as 'market_analyst=my_module:TOOL,...'"
    )
    portfolio: bool = Field(
        False,
        description="decide on all coins in one conversation, in fractions of the whole equity; off: coin by coin, "
        "each with an equal share of it",
    )
    question_price: float = Field(
        0.0,
        ge=0.0,
        le=100.0,
        description="basis points of equity that a question to a sub-agent costs in the reward; the manager is told",
    )
    pooled_trend: bool = Field(
        False,
        description="get_trend reads the returns of the market's other coins too, whose drifts turn together; false: "
        "the coin's own alone",
    )
    retries: int = Field(
        0,
        ge=0,
        le=5,
        description="malformed turns of a conversation that get an error message; one more ends it",
    )
    prompts: Literal["auto", "short", "full"] = Field(
        "auto",
        description="full says what a role does, the units, the costs and how to answer, and lists the tools; short is "
        "for a model that learnt this in a warm start; auto: short for the project's own nano, full for any other",
    )
    max_tokens: int = Field(
        0,
        ge=0,
        le=4096,
        description="tokens of one answer at most, and 64 more for each further coin of a portfolio; 0: 64 with short "
        "prompts, 512 with full ones",
    )
    thinking_tokens: int = Field(
        0,
        ge=0,
        le=65_536,
        description="tokens for the thought of a model that answers here or on vLLM, beside its answer; 0: it does not "
        "think; at an endpoint a model that thinks has 8,192 by itself",
    )

    def answer_tokens(self, full: bool) -> int:
        """`max_tokens`, or what 0 means with short or `full` prompts."""
        return self.max_tokens or (FULL_ANSWER if full else SHORT_ANSWER)

    @model_validator(mode="after")
    def _something_to_inherit(self) -> Self:
        if not self.inherit_tools and {"market_analyst", "risk_analyst"} <= set(self.roles):
            raise ValueError(
                "inherit_tools = false is about the tools of sub-agents that roles leaves out, and market_analyst and "
                "risk_analyst are both there: leave one of them out, or leave inherit_tools out"
            )
        return self

    @field_validator("max_tokens")
    @classmethod
    def _room(cls, tokens: int) -> int:
        if 0 < tokens < LEAST_ANSWER:
            raise ValueError(f"no answer fits into {tokens} tokens; give {LEAST_ANSWER} or more, or 0")
        return tokens

    @field_validator("thinking_tokens")
    @classmethod
    def _room_for_a_thought(cls, tokens: int) -> int:
        if 0 < tokens < LEAST_THOUGHT:
            raise ValueError(f"no thought fits into {tokens} tokens; give {LEAST_THOUGHT} or more, or 0")
        return tokens


class TeamSettings(TeamConfig):
    """The section as a team works by it: its `prompts` are chosen, and its model's sampling and limits are there.

    Attributes:
        schemas_in_prompt: whether the system turn lists the tools' JSON schemas; an endpoint gets them beside it.
        context_tokens: how long a conversation may be with its next answer (0: any length); the oldest tool results are
            taken out to stay below.
        mask_symbols: whether prompts have neutral names and no dates, so that memory of them cannot help.
    """

    schemas_in_prompt: bool
    context_tokens: int
    sampling: Sampling
    mask_symbols: bool = True
