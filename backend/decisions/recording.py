"""What a team decided, as documents for the store and as remarks for its reader."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict

from backend.decisions.document import (
    ConversationDocument,
    DecisionDocument,
    GuardClamp,
    LaterClamp,
    Message,
    RiskRuling,
    StoredCall,
    StoredDecision,
    TokenUsage,
)
from cryptosentinel.agents.registry import ROLES, role_title
from cryptosentinel.conversation.transcript import CalledTurn, Transcript
from cryptosentinel.episode import EpisodeResult
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.protocol.tool_calls import MalformedCall, split_thought
from cryptosentinel.team import TeamDecision
from simulator.market.market import Market
from simulator.market.timeframes import format_time


def decision_document(
    codec: ChatFormat,
    decision: TeamDecision,
    equity_before: float | None = None,
    equity_after: float | None = None,
    time_of: Callable[[int], int] | None = None,
) -> DecisionDocument:
    """A decision as a document; its return follows from the equity before it and at the next decision. `time_of` gives
    the close of a bar; without it what the guard did later is left out."""
    net_return = None
    if equity_before is not None and equity_after is not None:
        net_return = equity_after / equity_before - 1.0 if equity_before > 0 else 0.0
    return DecisionDocument(
        symbols=tuple(decision.symbols),
        conversations=tuple(_conversation(codec, transcript) for transcript in decision.transcripts),
        rulings=tuple(RiskRuling(**asdict(ruling)) for ruling in decision.rulings),
        clamps=tuple(GuardClamp(**asdict(clamp)) for clamp in decision.clamps),
        orders=tuple(decision.orders),
        later=tuple(LaterClamp(**asdict(clamp), time=time_of(bar)) for bar, clamp in decision.later)
        if time_of is not None
        else (),
        equity_before=equity_before,
        equity_after=equity_after,
        net_return=net_return,
        thinking_ms=decision.thinking_ms,
    )


def episode_decisions(run: str, backtest: str, codec: ChatFormat, episode: EpisodeResult) -> list[StoredDecision]:
    """The decisions of an episode with what the account made of each: the change of equity up to the next decision."""
    times, equity = episode.result.times, episode.result.equity
    by_bar: dict[int, list[int]] = {}
    for number, (bar, _) in enumerate(episode.decisions):
        by_bar.setdefault(bar, []).append(number)
    bars = sorted(by_bar)

    def close_of(bar: int) -> int:
        return int(times[bar - episode.result.start])

    decisions: list[StoredDecision] = []
    for position, bar in enumerate(bars):
        begin = bar - bars[0]
        end = bars[position + 1] - bars[0] if position + 1 < len(bars) else len(equity) - 1
        before, after = float(equity[begin]), float(equity[end])
        for number in by_bar[bar]:
            document = decision_document(codec, episode.decisions[number][1], before, after, close_of)
            decisions.append(StoredDecision(run, backtest, number, int(times[begin]), document))
    return decisions


def token_usage(transcript: Transcript) -> TokenUsage:
    """What a conversation took; a log-probability that is not finite is not known."""
    said = list(transcript.mask)
    for first, last in transcript.forced:  # what the engine wrote to close a thought stands inside a turn
        said[first:last] = [True] * (last - first)
    begins = [place for place, here in enumerate(said) if here and (place == 0 or not said[place - 1])]
    own = [logp for logp, sampled in zip(transcript.logps, transcript.mask, strict=True) if sampled]
    sampled, total = len(own), math.fsum(own)
    return TokenUsage(
        prompt=sum(not one for one in transcript.mask),
        sampled=sampled,
        turns=len(begins),
        read=sum(begins),
        logp=total if math.isfinite(total) else None,
        mean_logp=total / sampled if sampled and math.isfinite(total) else None,
        cost=transcript.cost,
        dropped=transcript.dropped,
        thought=transcript.usage.reasoning,
        thoughts_cut=transcript.thoughts_cut,
    )


def conversation_messages(codec: ChatFormat, transcript: Transcript) -> tuple[Message, ...]:
    """The turns of a conversation with their calls, each thought apart from what was then said."""
    thoughts, calls = iter(transcript.thoughts), iter(transcript.calls)
    messages = []
    for message in codec.messages(transcript.ids):
        thought, content, call = "", message["content"], None
        if message["role"] == "assistant":
            turn = next(calls, None)
            call = None if turn is None else stored_call(turn)
            if codec.thoughts is not None:
                dropped = next(thoughts, "")
                thought, content = split_thought(content)
                thought = thought or dropped
        messages.append(Message(role=message["role"], content=content, thought=thought, call=call))
    return tuple(messages)


def stored_call(turn: CalledTurn) -> StoredCall:
    """How a turn was read, as the store keeps it."""
    if isinstance(turn.call, MalformedCall):
        return StoredCall(code=turn.call.code, detail=turn.call.detail)
    arguments = turn.call.arguments.model_dump(mode="json", exclude_unset=True)
    return StoredCall(tool=turn.call.name, arguments=arguments, opened=turn.opened)


def remarks(name: str, episode: EpisodeResult, market: Market) -> list[str]:
    """What a reader must know of the episode of team `name` before its numbers, a sentence each without its full stop:
    a liquidation, roles that never gave a valid answer, coins without a price."""
    sentences = []
    result = episode.result
    if episode.liquidated_at is not None:
        # A bar before the first decision has no row: `times[0]` is the close of bar `start`.
        when = format_time(int(result.times[episode.liquidated_at - result.start]))
        sentences.append(
            f"{name}: the account was liquidated, which was found at {when} UTC; nothing was decided from then on"
        )
    transcripts = [transcript for _, decision in episode.decisions for transcript in decision.transcripts]
    for role in ROLES:
        of_role = [transcript for transcript in transcripts if transcript.role == role]
        if of_role and not any(transcript.valid for transcript in of_role):
            reasons = Counter((transcript.reason or "").partition(":")[0] for transcript in of_role)
            [(reason, _)] = reasons.most_common(1)
            meant = ", so it never changed a position" if role == "manager" else ""
            sentences.append(
                f"{name}: {role_title(role)} gave no valid answer in any of {len(of_role)} conversations, mostly "
                f"{reason}{meant}"
            )
    last = result.start + len(result.times) - 1
    view = market.view(last)
    untraded = [symbol for symbol in market.symbols if math.isnan(view.last_close(symbol))]
    if untraded:
        sentences.append(
            f"{', '.join(untraded)}: no price up to the end of the window, so nothing could be traded there"
        )
    return sentences


def _conversation(codec: ChatFormat, transcript: Transcript) -> ConversationDocument:
    return ConversationDocument(
        role=transcript.role,
        ordinal=transcript.ordinal,
        policy_version=transcript.policy_version,
        asked=transcript.brief,
        messages=conversation_messages(codec, transcript),
        answer=transcript.answer,
        problem=transcript.reason,
        truncated=transcript.truncated,
        usage=token_usage(transcript),
    )
