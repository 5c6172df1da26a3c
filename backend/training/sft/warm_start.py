"""The warm start: makes nano and its tokenizer from transcripts of the scripted team.

About three decisions in ten are the expert's, the others are drawn at random. So the model learns the language whole
and the skill only a little; what M-GRPO adds to it can be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from backend.training.curriculum.queries import QueryPool
from backend.training.sft.sft import SftSettings, warm_start
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.guard.guard import Guard, GuardLimits
from cryptosentinel.llm.chat_codec import ChatCodec, make_byte_codec
from cryptosentinel.llm.nano import nano_config, new_nano, save_model, train_tokenizer
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies, novice_policies
from cryptosentinel.team import Team, TeamDecision, TeamSettings, derive_seed

Report = Callable[[str, int, int], None]  # what is being done, done so far, of how much
TOKENIZER_DECISIONS = 400


@dataclass(frozen=True)
class NanoSettings:
    """What the warm start makes nano of. `decisions` is how many decisions are transcribed."""

    vocab_size: int
    hidden_size: int
    layers: int
    intermediate_size: int
    decisions: int
    expert_share: float
    sft: SftSettings


def transcribe(
    codec: ChatCodec, pool: QueryPool, team_settings: TeamSettings, decisions: int, expert_share: float, seed: int
) -> list[Transcript]:
    """All valid conversations of `decisions` decisions on states drawn from `pool`: the first `expert_share` of them as
    the expert team takes them, the others by novices."""
    experts = round(decisions * expert_share)
    queries = pool.draw(derive_seed(seed, "transcripts"), 0, decisions, easy=False)
    results: list[TeamDecision] = []
    roles = team_settings.roles
    for policies, part in ((expert_policies(roles), queries[:experts]), (novice_policies(roles), queries[experts:])):
        engine = ScriptedEngine(codec, policies)
        team = Team(codec, engine.policy_version, team_settings)
        tasks = [
            team.decide(
                query.view(), query.account(), (query.symbol,), Guard(GuardLimits()), derive_seed(seed, query.key)
            )
            for query in part
        ]
        results += run_all(tasks, engine)
    return [transcript for decision in results for transcript in decision.transcripts if transcript.valid]


def make_nano(
    folder: Path, pool: QueryPool, team_settings: TeamSettings, settings: NanoSettings, seed: int, report: Report
) -> list[float]:
    """Write a warm-started nano and its tokenizer to `folder`; returns the losses of the steps."""
    report("tokenizer", 0, 1)
    bytes_codec = make_byte_codec()
    sample = transcribe(
        bytes_codec, pool, team_settings, min(TOKENIZER_DECISIONS, settings.decisions), settings.expert_share, seed
    )
    tokenizer = train_tokenizer([bytes_codec.decode(list(one.ids)) for one in sample], settings.vocab_size)
    report("tokenizer", 1, 1)
    codec = ChatCodec(tokenizer)
    transcripts = transcribe(codec, pool, team_settings, settings.decisions, settings.expert_share, seed)
    report("transcripts", len(transcripts), len(transcripts))
    config = nano_config(
        codec.vocab_size,
        hidden_size=settings.hidden_size,
        layers=settings.layers,
        intermediate_size=settings.intermediate_size,
    )
    model = new_nano(seed, config)
    examples = [(np.asarray(one.ids, np.int32), np.asarray(one.mask, np.bool_)) for one in transcripts]
    losses = warm_start(
        model, examples, settings.sft, lambda step, loss: report("warm start", step, settings.sft.steps)
    )
    save_model(folder, model, tokenizer)
    return losses
