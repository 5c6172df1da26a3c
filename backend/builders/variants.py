"""Variants of a team in a backtest: with one part taken away, or on an altered market.

Each answers one question about a result: what a role was worth, what its binding verdicts were, and whether a model
knew more than it was shown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from backend.builders.loaded_team import UNMASKED, LoadedTeam
from cryptosentinel.agents.registry import STANDARD, role_title
from cryptosentinel.agents.risk_analyst import Verdict
from cryptosentinel.agents.role import SubAgent
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import Team
from simulator.checks.perturbation import with_shuffled_days, with_shuffled_news
from simulator.errors import UserError
from simulator.market.market import Market

_WITHOUT = "without"
ABLATIONS = (*(f"{_WITHOUT}:{role}" for role in STANDARD), "no_veto")
ALTERED_FUTURE = "altered_future"
LEAKAGE = ("unmasked", "shuffled_news", "shuffled_days", ALTERED_FUTURE)
VARIANTS = (*ABLATIONS, *LEAKAGE)
_ON_OTHER_DATA = {"shuffled_news": ", headlines shuffled", "shuffled_days": ", days shuffled"}


@dataclass(frozen=True)
class Variant:
    """A way in which a team or its market is changed. `kind` is that of its name, `role` the role that it is about."""

    kind: str
    role: str = ""

    @classmethod
    def parse(cls, text: str) -> Variant:
        """The variant called `text`. Raises `UserError` where there is none."""
        kind, _, role = text.partition(":")
        if text in VARIANTS or (kind == _WITHOUT and role):
            return cls(kind, role)
        raise UserError(f"there is no variant '{text[:60]}': choose of {', '.join(VARIANTS)}")

    def __str__(self) -> str:
        return f"{self.kind}:{self.role}" if self.role else self.kind

    @property
    def suffix(self) -> str:
        """What is added to the name of a team."""
        match self.kind:
            case "without":
                return f", without {role_title(self.role)}"
            case "no_veto":
                return ", verdicts do not bind"
            case "unmasked":
                return UNMASKED
            case "altered_future":
                return ", another future"
        return _ON_OTHER_DATA[self.kind]

    @property
    def changes_market(self) -> bool:
        """Whether the team stays as it is and trades an altered market."""
        return self.kind in _ON_OTHER_DATA

    def of(self, loaded: LoadedTeam) -> LoadedTeam:
        """The team so changed, under its new name. Raises `UserError` where it cannot be changed so."""
        named = loaded.renamed(f"{loaded.name}{self.suffix}")
        team = loaded.team
        if self.role and self.role not in team.settings.roles:
            raise UserError(
                f"variant {self}: team {loaded.name} has no role '{self.role}'; it has {', '.join(team.settings.roles)}"
            )
        match self.kind:
            case "without":
                return _without(named, self.role)
            case "no_veto":
                judges = [role.key for role in team.sub_agents.values() if _is_judge(role)]
                if not judges:
                    raise UserError(f"variant {self}: team {loaded.name} has nobody whose verdicts bind")
                return replace(named, team=Team(team.codec, team.version_of, team.settings, advisory=judges))
            case "unmasked":
                if not team.settings.mask_symbols:
                    raise UserError(f"variant {self}: team {loaded.name} sees names and dates already")
                return loaded.unmasked()
        return named

    def market(self, market: Market, start: int, stop: int, seed: int) -> Market:
        """The market that is traded in the bars from `start` to `stop`. Raises `DataError` as the alteration does."""
        if self.kind == "shuffled_news":
            return with_shuffled_news(market, seed)
        if self.kind == "shuffled_days":
            return with_shuffled_days(market, start, stop, seed)
        return market


def _is_judge(role: SubAgent) -> bool:
    return role.answer.arguments is Verdict


def _without(loaded: LoadedTeam, role: str) -> LoadedTeam:
    """The team without a sub-agent, whose tools its manager has itself unless its settings say otherwise."""
    team = loaded.team
    settings = team.settings.model_copy(update={"roles": tuple(one for one in team.settings.roles if one != role)})
    engine = loaded.engine
    if isinstance(engine, ScriptedEngine):
        policies = expert_policies(settings.roles, portfolio=settings.portfolio, inherits=settings.inherit_tools)
        engine = ScriptedEngine(team.codec, policies)
    return replace(loaded, team=Team(team.codec, team.version_of, settings), engine=engine)
