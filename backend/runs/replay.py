"""One decision of a stored backtest again, with a role's answer replaced.

The team plays its window once more up to that decision, by the same code, with the stored answers in the place of its
model; so the account, the guard and the lessons are those of the run. In the decision itself a role that is shown
something else than then answers again: by the team's own model, or by rules.

Each request of a decision has a seed of its own, which follows from the run's seed, the bar, the role and the turn. So
a stored answer is found by the seed of its request, whatever engine gave it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import ValidationError

from backend.builders.loaded_team import LoadedTeam
from backend.builders.market import account_of, limits_of, thinking_time_of
from backend.builders.variants import Variant
from backend.decisions.backtest_document import BacktestDocument, read_backtests
from backend.decisions.document import ConversationDocument, Message, StoredDecision
from backend.decisions.recording import episode_decisions
from backend.decisions.tree import DecisionTree, decision_tree, find_decision
from backend.reporting.market_reload import market_of
from backend.runs.backtest import subject_of
from backend.runs.stored_setup import StoredSetup, stored_setup
from backend.store.store import Store
from cryptosentinel.agents.registry import role_title
from cryptosentinel.agents.role import Role
from cryptosentinel.episode import play
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.engine import Completion, Engine, Request, Usage, failed_completion
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.protocol.tool_calls import MalformedCall, render_call, split_thought
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import Team, derive_seed
from simulator.backtest.run import BacktestRun, Window
from simulator.documents import parse_json
from simulator.errors import UserError
from simulator.market.market import Market

Answering = Literal["team", "rules"]
_CLOSE = 1e-6  # relative difference of equity that is rounding
_MOST_TURNS = 64  # of a conversation, and conversations of a role in a decision
_FAILED = "engine_failed: "  # how a conversation's problem begins whose request failed
GivenAnswer = Mapping[str, Any]  # the arguments of the call that a role ends with


@dataclass(frozen=True)
class DecisionReplay:
    """The stored decision and the same one replayed. `asked` requests were answered again."""

    then: StoredDecision
    now: StoredDecision
    then_tree: DecisionTree
    now_tree: DecisionTree
    asked: int

    @property
    def same(self) -> bool:
        """Whether the orders are those that were sent."""
        return self.then.document.orders == self.now.document.orders


def replay_decision(
    store: Store,
    run_id: str,
    number: int,
    instead: Mapping[str, GivenAnswer],
    *,
    team: str = "",
    by: Answering = "team",
) -> DecisionReplay:
    """Replay decision `number` of `team` in a run (default: the only one that has decisions), in which each role of
    `instead` ends with that answer. `by` answers what was not asked then: the team's own engine, or the rules of the
    scripted team.

    Raises `UserError` for a decision or role that is not there, an answer of another shape, a team whose folder
    is gone, and data or settings that have changed since.
    """
    then, then_tree = find_decision(store, run_id, number, team or None)
    setup = stored_setup(store, run_id)
    result = {one.name: one.document for one in read_backtests(store, run_id)}.get(then.backtest)
    if result is None:
        raise UserError(f"run {run_id} has no result of '{then.backtest}', so its decisions cannot be replayed")
    decisions = [StoredDecision.from_record(record) for record in store.decisions(run_id, then.backtest)]
    loaded, variant = _loaded(setup, then.backtest)
    market = market_of(setup.run)
    if variant is not None:
        market = variant.market(market, setup.window.start, setup.window.stop, setup.run.seed)
    calls = checked_answers(loaded.team, instead)
    turns, seed = _turns(setup, result, decisions, then)
    answers = StoredAnswers(
        loaded.team.codec,
        loaded.engine if by == "team" else _rules(loaded.team),
        turns,
        seeds_of(seed, loaded.team.roles),
        {key: replacement(loaded.team, key, call) for key, call in calls.items()},
    )
    played = _played(setup, replace(loaded, engine=answers), market, result, then)
    now = played[then.ordinal]
    before, stored_before = now.document.equity_before, then.document.equity_before
    if before is None or stored_before is None or abs(before - stored_before) > _CLOSE * abs(stored_before):
        raise UserError(
            f"the replay came to an account of {before} at that decision, where the run had {stored_before}: the "
            "settings or the program have changed since; make the backtest again"
        )
    return DecisionReplay(then, now, then_tree, decision_tree(now.document), answers.asked)


def _loaded(setup: StoredSetup, name: str) -> tuple[LoadedTeam, Variant | None]:
    """The team that is called `name` in the run, and the variant that it is. Raises `UserError` where it is gone."""
    source = setup.sources.get(name)
    if source is None:
        raise UserError(f"run {setup.run.run} has no team '{name}' that could decide again")
    subject = subject_of(source.team, setup.config)
    if not isinstance(subject, LoadedTeam):
        raise UserError(f"{source.team} is a strategy, which has no conversations to replay")
    if not source.variant:
        return subject, None
    variant = Variant.parse(source.variant)
    return variant.of(subject), variant


def _rules(team: Team) -> Engine:
    """The rules of the scripted team in place of a model."""
    settings = team.settings
    policies = expert_policies(settings.roles, portfolio=settings.portfolio, inherits=settings.inherit_tools)
    return ScriptedEngine(team.codec, policies)


def _turns(
    setup: StoredSetup, result: BacktestDocument, decisions: Sequence[StoredDecision], then: StoredDecision
) -> tuple[dict[int, StoredTurn], int]:
    """The stored turns of all decisions up to those at the same close, and the seed of the one that is replayed."""
    bar_of = {time: result.start + row for row, time in enumerate(result.times)}
    turns: dict[int, StoredTurn] = {}
    place, before, late, chosen = 0, -1, 0, 0
    for decision in sorted(decisions, key=lambda one: one.ordinal):
        if decision.time > then.time:
            break
        # Several decisions at one close are taken one after the other, and each waits for those before it.
        place, late = (place + 1, late) if decision.time == before else (0, 0)
        before = decision.time
        seed = derive_seed(setup.run.seed, bar_of[decision.time], place)
        thought = decision.document.thinking_ms or 0
        turns |= stored_turns(decision, seed, (thought - late) / 1000.0)
        late = thought
        if decision.ordinal == then.ordinal:
            chosen = seed
    return turns, chosen


def _played(
    setup: StoredSetup, loaded: LoadedTeam, market: Market, result: BacktestDocument, then: StoredDecision
) -> list[StoredDecision]:
    """The decisions of the window up to the close of the next decision."""
    config, window = setup.config, setup.window
    bar = result.start + result.times.index(then.time)
    stop = min(bar + window.decide_every, window.stop)
    game = BacktestRun(market, Window(window.start, stop, window.decide_every), **account_of(config, market).terms)
    task = play(
        loaded.team, game, limits_of(config.guard), setup.run.seed, price=loaded.price,
        thinking_time=thinking_time_of(config),
    )  # fmt: skip
    [episode] = run_all([task], loaded.engine)
    return episode_decisions(setup.run.run, then.backtest, loaded.team.codec, episode)


# -- what is changed ---------------------------------------------------------------------------------------------------


def parse_answers(texts: Sequence[str]) -> dict[str, GivenAnswer]:
    """The answers that are written as `role={...}`, by role. Raises `UserError`."""
    answers: dict[str, GivenAnswer] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name.strip():
            raise UserError(f"'{text[:60]}' names nothing to change: write it like market_analyst={{...}}")
        answers[name.strip()] = _object(name.strip(), value)
    return answers


def checked_answers(team: Team, answers: Mapping[str, GivenAnswer]) -> dict[str, str]:
    """The replaced answers as the calls that the roles of `team` end with. Raises `UserError` for a role that is not in
    the team, and for an answer of another role."""
    roles, calls = _roles(team), {}
    for key, arguments in answers.items():
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


def _ends(role: Role, codec: ChatFormat, text: str) -> bool:
    """Whether a turn is a role's answer, or none that could be used."""
    call = codec.parse(text, role.argument_types())
    return isinstance(call, MalformedCall) or call.name == role.answer.name


def _roles(team: Team) -> dict[str, Role]:
    return {role.key: role for role in (team.manager, *team.sub_agents.values())}


def _object(name: str, text: str) -> GivenAnswer:
    try:
        value = parse_json(text)
    except ValueError as error:
        raise UserError(f'{name}: what follows the = is not JSON ({error}): write it like {{"up": 0.7}}') from error
    if not isinstance(value, dict):
        raise UserError(f'{name}: what follows the = is not a JSON object: write it like {{"up": 0.7}}')
    return value


# -- the stored answers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredTurn:
    """A turn of a stored conversation: what the model had read, and what it said, None where its request failed with
    `problem`. `seconds` is how long one waited for the decision, on its first turn; 0 elsewhere."""

    before: tuple[Message, ...]
    said: str | None
    problem: str
    finished: bool
    seconds: float


Replacement = Callable[[str | None], str | None]  # from a role's stored turn to what it says instead, None: as it is


@dataclass
class StoredAnswers:
    """Answers with the stored turns, by the seeds of their requests.

    The requests of the decision that is replayed have the seeds `edited`. Of these a role in `replaced` may say
    something else; a role that is shown something else is asked again, which is `live`. Any other request that
    the run did not make raises `UserError`. `asked` counts what `live` was asked.
    """

    codec: ChatFormat
    live: Engine
    turns: Mapping[int, StoredTurn]
    edited: Collection[int]
    replaced: Mapping[str, Replacement] = field(default_factory=dict)
    name: str = "stored answers"
    asked: int = 0

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Answers in the order of the requests. Raises `UserError`, and what the live engine raises."""
        return [self._answer(request) for request in requests]

    def policy_version(self, role: str) -> str:
        """That of the live engine."""
        return self.live.policy_version(role)

    def _answer(self, request: Request) -> Completion:
        turn = self.turns.get(request.seed)
        if request.seed not in self.edited:
            if turn is None:
                raise UserError(
                    f"on the way to the decision {role_title(request.role)} is asked something that it was not asked "
                    "in the run: the data, the settings or the program have changed since"
                )
            return self._completion(turn)
        stored = turn if turn is not None and self._has_read(request, turn) else None
        change = self.replaced.get(request.role)
        text = None if change is None else change(None if stored is None else stored.said)
        if text is not None:
            return self._said(text)
        if stored is not None:
            return self._completion(stored)
        self.asked += 1
        return self.live.generate([request])[0]

    def _has_read(self, request: Request, turn: StoredTurn) -> bool:
        """Whether the model is shown what it was shown then, its thoughts aside."""
        shown = [(one["role"], split_thought(one["content"])[1] if one["role"] == "assistant" else one["content"])
                 for one in self.codec.messages(request.ids)]  # fmt: skip
        return shown == [(one.role, one.content) for one in turn.before]

    def _completion(self, turn: StoredTurn) -> Completion:
        usage = Usage(seconds=turn.seconds)
        if turn.said is None:
            return failed_completion(turn.problem, usage)
        said = self._said(turn.said)
        ids = said.ids if turn.finished else said.ids[:-1]
        return Completion(ids, said.logps[: len(ids)], turn.finished, usage)

    def _said(self, text: str) -> Completion:
        ids = tuple(self.codec.encode_assistant(text))
        return Completion(ids, (0.0,) * len(ids), True)


def stored_turns(decision: StoredDecision, seed: int, seconds: float) -> dict[int, StoredTurn]:
    """The turns of a decision whose sampling began with `seed`, by the seeds of their requests. `seconds` is how long
    one waited for it."""
    turns: dict[int, StoredTurn] = {}
    for conversation in decision.document.conversations:
        number = 0
        for place, message in enumerate(conversation.messages):
            if message.role == "assistant":
                last = place == len(conversation.messages) - 1
                turn = StoredTurn(
                    conversation.messages[:place], message.content, "", not (last and conversation.truncated), 0.0
                )
                turns[_seed(seed, conversation, number)] = turn
                number += 1
        if (conversation.problem or "").startswith(_FAILED):
            reason = str(conversation.problem).removeprefix(_FAILED)
            turns[_seed(seed, conversation, number)] = StoredTurn(conversation.messages, None, reason, False, 0.0)
    for first in list(turns)[:1]:
        turns[first] = replace(turns[first], seconds=seconds)
    return turns


def seeds_of(seed: int, roles: Collection[str]) -> frozenset[int]:
    """The seeds of all requests that a decision of these roles can make, whose sampling begins with `seed`."""
    numbers = range(_MOST_TURNS)
    return frozenset(
        derive_seed(seed, role, ordinal, turn) for role in roles for ordinal in numbers for turn in numbers
    )


def _seed(seed: int, conversation: ConversationDocument, turn: int) -> int:
    return derive_seed(seed, conversation.role, conversation.ordinal, turn)
