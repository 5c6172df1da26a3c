"""Decisions as readable records: who was asked what, what they said, what RiskAnalyst and the guard changed, what it
earned."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from typing import Any

from backend.store.records import DecisionRecord
from cryptosentinel.agents.registry import ROLES, role_title
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.episode import EpisodeResult
from cryptosentinel.llm.chat_codec import ChatCodec, parse_conversation
from cryptosentinel.team import TeamDecision
from simulator.market.market import Market
from simulator.market.timeframes import format_time


def decision_story(codec: ChatCodec, decision: TeamDecision) -> dict[str, Any]:
    """A decision as a JSON-safe document; `conversations[0]` is the manager's, the others stand in the order of the
    calls."""
    return {
        "symbols": list(decision.symbols),
        "conversations": [_conversation(codec, transcript) for transcript in decision.transcripts],
        "rulings": [asdict(ruling) for ruling in decision.rulings],
        "clamps": [asdict(clamp) for clamp in decision.clamps],
        "orders": [asdict(order) for order in decision.orders],
        "events": decision.events,
    }


def episode_records(run: str, backtest: str, codec: ChatCodec, episode: EpisodeResult) -> list[DecisionRecord]:
    """The decisions of an episode with what the account made of each: the change of equity up to the next decision."""
    times, equity = episode.result.times, episode.result.equity
    by_bar: dict[int, list[int]] = {}
    for number, (bar, _) in enumerate(episode.decisions):
        by_bar.setdefault(bar, []).append(number)
    bars = sorted(by_bar)
    records: list[DecisionRecord] = []
    for position, bar in enumerate(bars):
        begin = bar - bars[0]
        end = bars[position + 1] - bars[0] if position + 1 < len(bars) else len(equity) - 1
        before, after = float(equity[begin]), float(equity[end])
        for number in by_bar[bar]:
            story = decision_story(codec, episode.decisions[number][1])
            story["equity_before"], story["equity_after"] = before, after
            story["net_return"] = after / before - 1.0 if before > 0 else 0.0
            records.append(DecisionRecord(run, backtest, number, int(times[begin]), story))
    return records


def remarks(name: str, episode: EpisodeResult, market: Market) -> list[str]:
    """What a reader must know of the episode of team `name` before its numbers, a sentence each without its full stop:
    a liquidation, roles that never gave a valid answer, coins without a price."""
    found = []
    result = episode.result
    if episode.liquidated_at is not None:
        # A bar before the first decision has no row: `times[0]` is the close of bar `start`.
        when = format_time(int(result.times[episode.liquidated_at - result.start]))
        found.append(
            f"{name}: the account was liquidated, which was found at {when} UTC; nothing was decided from then on"
        )
    talks = [transcript for _, decision in episode.decisions for transcript in decision.transcripts]
    for role in ROLES:
        own = [talk for talk in talks if talk.role == role]
        if own and not any(talk.valid for talk in own):
            [(reason, _)] = Counter((talk.reason or "").partition(":")[0] for talk in own).most_common(1)
            meant = ", so it never changed a position" if role == "manager" else ""
            found.append(
                f"{name}: {role_title(role)} gave no valid answer in any of {len(own)} conversations, mostly "
                f"{reason}{meant}"
            )
    last = result.start + len(result.times) - 1
    view = market.view(last)
    untraded = [symbol for symbol in market.symbols if math.isnan(view.last_close(symbol))]
    if untraded:
        found.append(f"{', '.join(untraded)}: no price up to the end of the window, so nothing could be traded there")
    return found


def _conversation(codec: ChatCodec, transcript: Transcript) -> dict[str, Any]:
    return {
        "role": transcript.role,
        "title": ROLES[transcript.role].title,
        "ordinal": transcript.ordinal,
        "policy_version": transcript.policy_version,
        "asked": transcript.brief,
        "messages": parse_conversation(codec, transcript.ids),
        "answer": transcript.answer,
        "problem": transcript.reason,
        "truncated": transcript.truncated,
        "usage": usage(transcript),
    }


def usage(transcript: Transcript) -> dict[str, Any]:
    """What a conversation took and how sure its words were.

    `prompt` tokens were given to the model and `sampled` ones came from it, each counted once. `read` counts what the
    model was shown at each of its `turns`, all that went before included: `read` plus `sampled` is what an engine
    without a cache works through. `logp` is the sum of the sampled tokens' log-probabilities, `mean_logp` their mean,
    None where nothing was sampled. `cost` is money; `dropped` tool results were taken out to make room.
    """
    mask = transcript.mask
    begins = [place for place, own in enumerate(mask) if own and (place == 0 or not mask[place - 1])]
    sampled = sum(mask)
    total = math.fsum(logp for logp, own in zip(transcript.logps, mask, strict=True) if own)
    return {
        "prompt": len(mask) - sampled,
        "sampled": sampled,
        "turns": len(begins),
        "read": sum(begins),
        "logp": total if math.isfinite(total) else None,
        "mean_logp": total / sampled if sampled and math.isfinite(total) else None,
        "cost": transcript.cost,
        "dropped": transcript.dropped,
    }
