"""What a team is set to: the same for its backtests, its training and its paper trading."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cryptosentinel.llm.engine import Sampling

Prompts = Literal["short", "full"]


@dataclass(frozen=True)
class TeamSettings:
    """How the team works.

    Attributes:
        horizon_bars: bars over which a decision is judged.
        prompts: "full" for models that have to be told what a role does (`agents.instructions`), "short" for those that
            learnt it in a warm start.
        schemas_in_prompt: whether the system turn lists the tools' JSON schemas; an endpoint gets them beside it.
        roles: the sub-agents that the manager may ask; none of them: a single agent.
        inherit_tools: whether the manager has the tools of the standard sub-agents that are not in `roles`.
        portfolio: whether it decides on all coins in one conversation, in fractions of the whole equity.
        question_price_bps: what a question to a sub-agent costs in training's reward, in basis points of equity; the
            manager's brief says it.
        retries: how often in a conversation a malformed turn is answered with what is wrong, instead of ending it;
            nothing of it is repaired, and it counts as a turn.
        pooled_trend: whether `get_trend` reads the returns of the other coins too, by `pooled_drift_belief`.
        tools: tools of the user's own, by the names under which `registry.register_tool` has them.
        context_tokens: how long a conversation may be with its next answer (0: any length); the oldest tool results are
            taken out to stay below.
    """

    horizon_bars: int
    mask_symbols: bool
    prompts: Prompts
    schemas_in_prompt: bool
    roles: tuple[str, ...]
    inherit_tools: bool
    portfolio: bool
    retries: int
    context_tokens: int
    sampling: Sampling
    question_price_bps: float
    tools: tuple[str, ...]
    pooled_trend: bool

    @property
    def joint_questions(self) -> bool:
        """Whether a sub-agent is asked about several coins in one conversation: in full prompts on a portfolio."""
        return self.portfolio and self.prompts == "full"
