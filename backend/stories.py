"""Decisions as readable records: who was asked what, what they said, what RiskAnalyst and the guard changed, what it
earned."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from backend.store.records import DecisionRecord
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.episode import EpisodeResult
from cryptosentinel.llm.tokens import ChatCodec, parse_conversation
from cryptosentinel.team import TeamDecision
from cryptosentinel.transcript import Transcript


def decision_story(codec: ChatCodec, decision: TeamDecision) -> dict[str, Any]:
    """A decision as a JSON-safe document; `conversations[0]` is the manager's, the others stand in the order of the
    calls."""
    return {
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
    }
