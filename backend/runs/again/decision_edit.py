"""What is changed in a decision that is replayed: what a role is shown, or what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from pydantic import ValidationError

from cryptosentinel.agents.role import Role, SubAgent, Tool
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.protocol.tool_calls import MalformedCall, render_call
from cryptosentinel.team import Team
from cryptosentinel.tools.context import ToolContext
from simulator.documents import parse_json
from simulator.errors import UserError

BRIEF = "brief"
_R = TypeVar("_R", bound=Role)
_Result = Mapping[str, Any]


@dataclass(frozen=True)
class DecisionEdit:
    """What is changed of a decision.

    `answers`: role -> the arguments of the answer that it gives in place of its own. `observations`: `role.brief` ->
    the text of its question, or `role.tool` -> the result of that tool.
    """

    answers: Mapping[str, _Result] = field(default_factory=dict)
    observations: Mapping[str, str | _Result] = field(default_factory=dict)


def parse_edit(answers: Sequence[str], observations: Sequence[str]) -> DecisionEdit:
    """The edit that is written as `role={...}` and `role.tool={...}` or `role.brief=text`. Raises `UserError`."""
    shown: dict[str, str | _Result] = {}
    for name, text in map(_pair, observations):
        shown[name] = text if name.endswith(f".{BRIEF}") else _object(name, text)
    return DecisionEdit({name: _object(name, text) for name, text in map(_pair, answers)}, shown)


def checked_answers(team: Team, edit: DecisionEdit) -> dict[str, str]:
    """The replaced answers as the calls that the roles of `team` end with. Raises `UserError` for a role that is not in
    the team, and for an answer that is none of its."""
    roles, calls = _roles(team), {}
    for key, arguments in edit.answers.items():
        if key not in roles:
            raise UserError(f"there is no role '{key[:60]}' in this team: choose of {', '.join(roles)}")
        answer = roles[key].answer
        try:
            checked = answer.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the answer"
            known = ", ".join(answer.arguments.model_fields)
            raise UserError(f"{key} cannot answer that ({place}: {first['msg']}); its fields are {known}") from error
        calls[key] = render_call(answer.name, checked.model_dump(exclude_none=True))
    return calls


def replacement(team: Team, key: str, call: str) -> Callable[[str | None], str | None]:
    """What a role says in place of a stored turn: its own calls of tools as they were, and then `call`."""
    role, codec = _roles(team)[key], team.codec

    def instead(stored: str | None) -> str | None:
        return call if stored is None or _ends(role, codec, stored) else None

    return instead


def edited_team(team: Team, edit: DecisionEdit, time: int, symbols: tuple[str, ...]) -> Team:
    """The team that, in the decision on `symbols` at `time` (ms), is shown the edited observations. Raises `UserError`
    for a role or a tool that it does not have."""
    roles = _roles(team)
    by_role: dict[str, dict[str, str | _Result]] = {}
    for name, shown in edit.observations.items():
        key, _, what = name.partition(".")
        if key not in roles:
            raise UserError(f"there is no role '{key[:60]}' in this team: choose of {', '.join(roles)}")
        tools = [tool.name for tool in roles[key].tools if tool.run is not None]
        if what not in (BRIEF, *tools):
            raise UserError(f"{key} is not shown '{what[:60]}': choose of {', '.join((BRIEF, *tools))}")
        by_role.setdefault(key, {})[what] = shown
    if not by_role:
        return team

    def here(context: ToolContext) -> bool:
        return context.view.now == time and context.symbols == symbols

    def edited(role: _R) -> _R:
        shown = by_role.get(role.key)
        if shown is None:
            return role
        text = shown.get(BRIEF)
        brief = role.brief

        def edited_brief(context: ToolContext) -> str:
            return text if isinstance(text, str) and here(context) else brief(context)

        changed = replace(role, brief=edited_brief, tools=tuple(_edited_tool(one, shown, here) for one in role.tools))
        if isinstance(changed, SubAgent) and changed.single is not None:
            changed = replace(changed, single=edited(changed.single))
        return changed

    return Team(team.codec, team.version_of, team.settings, advisory=team.advisory, edit=edited)


def _edited_tool(tool: Tool, shown: Mapping[str, str | _Result], here: Callable[[ToolContext], bool]) -> Tool:
    result, run = shown.get(tool.name), tool.run
    if run is None or not isinstance(result, Mapping):
        return tool
    edited, computed = dict(result), run

    def edited_run(context: ToolContext, arguments: Any) -> dict[str, Any]:
        return edited if here(context) else computed(context, arguments)

    return replace(tool, run=edited_run)


def _ends(role: Role, codec: ChatFormat, text: str) -> bool:
    """Whether a turn is a role's answer, or none that could be used."""
    call = codec.parse(text, role.argument_types())
    return isinstance(call, MalformedCall) or call.name == role.answer.name


def _roles(team: Team) -> dict[str, Role]:
    return {role.key: role for role in (team.manager, *team.sub_agents.values())}


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise UserError(f"'{text[:60]}' names nothing to change: write it like market_analyst={{...}}")
    return name.strip(), value


def _object(name: str, text: str) -> _Result:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise UserError(f'{name}: what follows the = is no JSON ({error}): write it like {{"up": 0.7}}') from error
    if not isinstance(value, dict):
        raise UserError(f'{name}: what follows the = is no JSON object: write it like {{"up": 0.7}}')
    return value
