"""Sub-agents that are asked about several coins in one conversation and answer for all of them in one call.

A manager with full prompts that decides on a portfolio asks so: what a role is, its tools and its rules are read once
and not once a coin. The questions, tools and answers are those of the role about one coin (`SubAgent.single`). A
consultation's question and answer are read with `answers_of`, whichever form they have.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from pydantic import Field, create_model, model_validator

from cryptosentinel.agents.manager import AskAboutPosition, AskAnalyst, Question, of_coin
from cryptosentinel.agents.role import Role, SubAgent, Tool
from cryptosentinel.protocol.tool_calls import Arguments, NoArguments
from cryptosentinel.protocol.untrusted import render_result
from cryptosentinel.tools.book import MOST_POSITIONS
from cryptosentinel.tools.context import ToolContext

LOOK_UP = "look_up"
EACH = "_each"  # what the names of such answers end with
CONSULT_ON_COINS, CONSULT_ON_POSITIONS = "consult_on_coins", "consult_on_positions"


class Several(Arguments):
    """Something about each of several coins, none of which is named twice."""

    @abstractmethod
    def coins(self) -> list[str]:
        """The coins, as they are named in the call."""

    @model_validator(mode="after")
    def _one_each(self) -> Several:
        if len(set(self.coins())) != len(self.coins()):
            raise ValueError("a coin is named twice")
        return self


_ASK = Field(min_length=1, max_length=16)


class Consultation(Several):
    """Questions to sub-agents about several coins. `ask` names the roles; `consultations` makes the types of a
    team."""

    ask: list[Any] = _ASK

    @model_validator(mode="after")
    def _one_question_each(self) -> Consultation:
        if len(set(self.ask)) != len(self.ask):
            raise ValueError("a role is asked twice")
        return self

    @abstractmethod
    def questions(self) -> list[Question]:
        """The questions about one coin each."""


class AskAboutCoins(Consultation):
    """The coins to analyse."""

    symbols: list[str] = Field(min_length=1, max_length=MOST_POSITIONS)

    def coins(self) -> list[str]:
        return self.symbols

    def questions(self) -> list[Question]:
        return [AskAnalyst(symbol=symbol) for symbol in self.symbols]


class AskAboutPositions(Consultation):
    """The proposed positions, all of them: the question for RiskAnalyst and Trader."""

    positions: list[AskAboutPosition] = Field(min_length=1, max_length=MOST_POSITIONS)

    def coins(self) -> list[str]:
        return [position.symbol for position in self.positions]

    def questions(self) -> list[Question]:
        return list(self.positions)


class JointAnswers(Several):
    """A role's answer about each coin that it was asked about; `joint` makes the type of a role."""

    answers: list[Any] = Field(min_length=1, max_length=MOST_POSITIONS)

    def coins(self) -> list[str]:
        return [answer.symbol for answer in self.answers]


class _About(Arguments):
    symbol: str = Field(max_length=24, description="the coin")


def consultations(sub_agents: Sequence[SubAgent]) -> list[Tool]:
    """The calls with which a manager asks these sub-agents about several coins: one for those that are asked about a
    coin, one for those that are asked about a position."""
    kinds: tuple[tuple[str, str, type[Arguments], type[Consultation]], ...] = (
        (CONSULT_ON_COINS, "What your analysts say about each of these coins.", AskAnalyst, AskAboutCoins),
        (CONSULT_ON_POSITIONS, "What they say about each proposed position.", AskAboutPosition, AskAboutPositions),
    )
    tools = []
    for name, description, about_one_coin, base in kinds:
        keys = tuple(role.key for role in sub_agents if role.consult.arguments is about_one_coin)
        if keys:
            who: Any = list[Literal[keys]]  # type: ignore[valid-type]  # the names are those of a team
            tools.append(Tool(name, description, create_model(base.__name__, __base__=base, ask=(who, _ASK))))
    return tools


def asking_jointly(role: SubAgent, questions: Sequence[Question]) -> Consultation:
    """What puts questions about several coins to one role."""
    positions = [one for one in questions if isinstance(one, AskAboutPosition)]
    if positions:
        return AskAboutPositions(ask=[role.key], positions=positions)
    return AskAboutCoins(ask=[role.key], symbols=[one.symbol for one in questions])


def joint(role: SubAgent) -> SubAgent:
    """The role as it is asked about several coins at once."""
    kind = role.core or role.answer.arguments
    of_one = create_model(f"{kind.__name__}About", __base__=(kind, _About))
    every: Any = (list[of_one], Field(min_length=1, max_length=MOST_POSITIONS))
    answer = create_model(f"{kind.__name__}Each", __base__=JointAnswers, answers=every)

    def brief(context: ToolContext) -> str:
        note = role.note
        return "\n".join(role.brief(one) + ("" if note is None else f" {note(one)}") for one in context.about)

    return replace(
        role,
        answer=Tool(f"{role.answer.name}{EACH}", f"{role.answer.description} Of each coin.", answer),
        tools=(*(tool for tool in role.tools if tool.name in role.opening), *_looking_up(role)),
        examples=[{"answers": [{"symbol": "C1", **example}]} for example in role.examples],
        guide=f"{role.guide or role.system}\n\nYou are asked about several coins at once. Judge each by what is said "
        "of it, and answer for all of them in one call.",
        brief=brief,
        note=None,
        single=role,
    )


def _looking_up(role: SubAgent) -> list[Tool]:
    """What the role may call besides its opening, the coin an argument; tools without arguments are choices of one."""
    rest = [tool for tool in role.tools if tool.name not in role.opening]
    plain = {tool.name: tool for tool in rest if tool.arguments is NoArguments}
    tools = [of_coin(tool) for tool in rest if len(plain) < 2 or tool.name not in plain]
    if len(plain) < 2:
        return tools

    def run(context: ToolContext, asked: Any) -> dict[str, Any]:
        compute = plain[asked.what].run
        assert compute is not None
        return compute(context, NoArguments())

    which: Any = (Literal[tuple(plain)], next(iter(plain)))
    arguments = create_model("LookUp", __base__=Arguments, what=which)
    told = " ".join(f"{tool.name}: {tool.description}" for tool in plain.values())
    return [*tools, of_coin(Tool(LOOK_UP, told, arguments, run))]


def of_several(context: ToolContext, questions: Mapping[str, Any]) -> ToolContext:
    """The context of a conversation about several coins; `questions` has side and exposure, if any, by symbol."""
    about = tuple(replace(context, symbol=symbol, **asked) for symbol, asked in questions.items())
    return replace(about[0], about=about)


def answers_of(
    role: Role, brief: Mapping[str, Any], answer: Mapping[str, Any] | None
) -> list[tuple[Mapping[str, Any], Arguments | None]]:
    """Each question of a consultation of `role` with its typed answer, None where there is no valid one. `brief` and
    `answer` are those of its transcript; `role` may have either form."""
    kind = about_one(role)
    if "questions" not in brief:
        return [(brief, None if answer is None else kind.model_validate(dict(answer)))]
    said: dict[str, Arguments] = {}
    for one in [] if answer is None else answer["answers"]:
        said[one["symbol"]] = kind.model_validate({name: value for name, value in one.items() if name != "symbol"})
    return [(question, said.get(question["name"])) for question in brief["questions"]]


def about_one(role: Role) -> type[Arguments]:
    """The type of a role's answer about one coin."""
    single = role.single if isinstance(role, SubAgent) else None
    return (single or role).answer.arguments


def joint_opening(role: SubAgent, context: ToolContext) -> list[str]:
    """The results of the role's first tools, `C1 name: {...}` a line; what holds for all coins is said once, without
    a coin."""
    assert role.single is not None
    lines = []
    for name in role.opening:
        tool = role.tool(name)
        assert tool.run is not None
        results = [render_result(tool.run(one, tool.arguments())) for one in context.about]
        if len(results) > 1 and len(set(results)) == 1:
            lines.append(f"{name}: {results[0]}")
        else:
            lines += [
                f"{one.mask.alias(one.symbol)} {name}: {result}"
                for one, result in zip(context.about, results, strict=True)
            ]
    return lines
