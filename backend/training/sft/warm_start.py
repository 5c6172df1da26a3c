"""The warm start: makes nano and its tokenizer from transcripts of the scripted team.

About three decisions in ten are the expert's, the others are drawn at random. So the model learns the language whole
and the skill only a little; what M-GRPO adds to it can be seen. `nano.teacher` makes the expert a worse one, which
leaves more to learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from backend.builders.market import limits_of
from backend.config.schema import GuardConfig, NanoConfig
from backend.evaluation.compare import ReportProgress
from backend.processes import ALONE, Workers, WorkReport
from backend.training.curriculum.queries import QueryPool
from backend.training.sft.sft_trainer import Example, SftSettings, warm_start
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.chat_codec import ChatCodec, make_byte_codec
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.nano import nano_config, new_nano, save_model, train_tokenizer
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import Teacher, expert_policies, novice_policies
from cryptosentinel.team import Team, TeamDecision, TeamSettings, derive_seed

TOKENIZER_DECISIONS = 400
_WARMUP_STEPS = 30
_WEIGHT_DECAY = 0.01
_PIECES = 8  # of the transcripts, which processes share: several for each, since novices take less time than teachers


def transcribe(
    codec: ChatFormat,
    pools: Sequence[QueryPool],
    team_settings: TeamSettings,
    decisions: int,
    teacher_share: float,
    seed: int,
    teacher: Teacher = "whole",
    piece: slice = slice(None),
) -> list[Transcript]:
    """All valid conversations of `decisions` decisions on states drawn from each of `pools` in turn: the first
    `teacher_share` of them as the `teacher` takes them, the others by novices. Of a `piece` of the decisions they are
    what they are among all: pieces in order make the whole."""
    experts = round(decisions * teacher_share)
    drawn = [pool.draw(derive_seed(seed, "transcripts"), 0, decisions, easy=False) for pool in pools]
    queries = [drawn[number % len(pools)][number] for number in range(decisions)]
    results: list[TeamDecision] = []
    roles, limits = team_settings.roles, limits_of(GuardConfig())
    whole = team_settings.portfolio
    teachers = expert_policies(roles, portfolio=whole, teacher=teacher)
    novices = novice_policies(roles, portfolio=whole)
    first, stop, _ = piece.indices(decisions)
    shares = (teachers, queries[first : min(stop, experts)]), (novices, queries[max(first, experts) : stop])
    for policies, part in shares:
        engine = ScriptedEngine(codec, policies)
        team = Team(codec, engine.policy_version, team_settings)
        tasks = [
            team.decide(
                query.view(),
                query.account(),
                query.symbols,
                Guard(limits),
                derive_seed(seed, query.key),
            )
            for query in part
        ]
        results += run_all(tasks, engine)
    return [transcript for decision in results for transcript in decision.transcripts if transcript.valid]


@dataclass(frozen=True)
class _TranscriptsTask:
    """A piece of the transcripts of a warm start, in the tokenizer that its JSON says."""

    tokenizer: str
    pools: Sequence[QueryPool]
    team_settings: TeamSettings
    nano: NanoConfig
    piece: slice


def _examples(task: _TranscriptsTask, report: WorkReport) -> list[Example]:
    codec, nano = ChatCodec(Tokenizer.from_str(task.tokenizer)), task.nano
    said = transcribe(
        codec, task.pools, task.team_settings, nano.decisions, nano.teacher_share, nano.seed, nano.teacher, task.piece
    )
    return [(np.asarray(one.ids, np.int32), np.asarray(one.mask, np.bool_)) for one in said]


def make_nano(
    folder: Path,
    pools: Sequence[QueryPool],
    team_settings: TeamSettings,
    nano: NanoConfig,
    report: ReportProgress,
    parts: int = 1,
    workers: Workers = ALONE,
) -> list[float]:
    """Write a nano and its tokenizer to `folder`, warm-started on states of all `pools`; returns the losses of the
    steps. Each step is cut into so many `parts`, which the `workers` share, as they do the transcripts."""
    report("tokenizer", 0, 1)
    bytes_codec = make_byte_codec()
    few = min(TOKENIZER_DECISIONS, nano.decisions)
    sample = transcribe(bytes_codec, pools, team_settings, few, nano.teacher_share, nano.seed, nano.teacher)
    tokenizer = train_tokenizer([bytes_codec.decode(list(one.ids)) for one in sample], nano.vocab_size)
    report("tokenizer", 1, 1)
    codec = ChatCodec(tokenizer)
    edges = [nano.decisions * one // _PIECES for one in range(_PIECES + 1)]
    json = tokenizer.backend_tokenizer.to_str()
    tasks = [_TranscriptsTask(json, pools, team_settings, nano, slice(*edge)) for edge in pairwise(edges)]
    examples = [example for piece in workers.each(_examples, tasks) for example in piece]
    report("transcripts", len(examples), len(examples))
    architecture = nano_config(
        codec.vocab_size, hidden_size=nano.hidden_size, layers=nano.layers, intermediate_size=nano.intermediate_size
    )
    model = new_nano(nano.seed, architecture)
    settings = SftSettings(
        steps=nano.steps,
        batch_tokens=nano.batch_tokens,
        learning_rate=nano.learning_rate,
        warmup_steps=_WARMUP_STEPS,
        weight_decay=_WEIGHT_DECAY,
        seed=nano.seed,
        parts=parts,
    )
    losses = warm_start(model, examples, settings, lambda step, loss: report("warm start", step, nano.steps), workers)
    save_model(folder, model, tokenizer)
    return losses
