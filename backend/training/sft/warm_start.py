"""The warm start: makes nano and its tokenizer from transcripts of the scripted team.

About three decisions in ten are the expert's, the others are drawn at random. So the model learns the language whole
and the skill only a little; what M-GRPO adds to it can be seen. `nano.teacher` makes the expert a worse one, which
leaves more to learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from backend.builders.market import limits_of
from backend.config.schema import GuardConfig, NanoConfig
from backend.processes import ALONE, Workers, WorkReport
from backend.training.curriculum.queries import Query, QueryPool
from backend.training.sft.sft_trainer import Example, SftSettings, warm_start
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.chat_codec import ChatCodec, make_byte_codec
from cryptosentinel.llm.chat_format import ChatFormat
from cryptosentinel.llm.nano import NANO_VOCABULARY, nano_config, new_nano, save_model, train_tokenizer
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies, novice_policies
from cryptosentinel.teachers import Teacher
from cryptosentinel.team import Team, derive_seed
from cryptosentinel.team_settings import TeamSettings

TOKENIZER_DECISIONS = 400
_SHORT = 500  # steps below which a warm start learns at the double rate
_WARMUP_STEPS = 30
_BATCH_TOKENS = 1024  # a step, with padding: of decisions of nano some twenty
_WEIGHT_DECAY = 0.01
_DECISIONS_AT_ONCE = 500  # whose transcripts are a piece of work


def transcribe(
    codec: ChatFormat,
    pools: Sequence[QueryPool],
    team_settings: TeamSettings,
    decisions: int,
    teacher_share: float,
    seed: int,
    teacher: Teacher = "expert",
) -> list[Transcript]:
    """All valid conversations of `decisions` decisions on states drawn from each of `pools` in turn: the first
    `teacher_share` of them as the `teacher` takes them, the others by novices."""
    queries = _drawn_queries(pools, decisions, seed)
    experts = round(decisions * teacher_share)
    by_teacher = _transcripts(codec, queries[:experts], team_settings, seed, teacher)
    return by_teacher + _transcripts(codec, queries[experts:], team_settings, seed, None)


def _drawn_queries(pools: Sequence[QueryPool], decisions: int, seed: int) -> list[Query]:
    drawn = [pool.draw(derive_seed(seed, "transcripts"), 0, decisions, easy=False) for pool in pools]
    return [drawn[number % len(pools)][number] for number in range(decisions)]


def _transcripts(
    codec: ChatFormat, queries: Sequence[Query], team_settings: TeamSettings, seed: int, teacher: Teacher | None
) -> list[Transcript]:
    """The valid conversations of a decision on each query, as the `teacher` takes it, or a novice where it is None."""
    roles, whole, limits = team_settings.roles, team_settings.portfolio, limits_of(GuardConfig())
    inherits = team_settings.inherit_tools
    if teacher is None:
        policies = novice_policies(roles, portfolio=whole, inherits=inherits)
    else:
        policies = expert_policies(roles, portfolio=whole, teacher=teacher, inherits=inherits)
    engine = ScriptedEngine(codec, policies)
    team = Team(codec, engine.policy_version, team_settings)
    tasks = [
        team.decide(query.view(), query.account(), query.symbols, Guard(limits), derive_seed(seed, query.key))
        for query in queries
    ]
    decided = run_all(tasks, engine)
    return [transcript for decision in decided for transcript in decision.transcripts if transcript.valid]


@dataclass(frozen=True)
class _ExamplesTask:
    """Some decisions of a warm start, by the `teacher` or by novices, in the tokenizer that its JSON says."""

    tokenizer: str
    queries: Sequence[Query]
    team_settings: TeamSettings
    seed: int
    teacher: Teacher | None


# Of several examples, one after the other: a row of ids, one of masks, and where each example ends.
_Rows = tuple[npt.NDArray[np.int32], npt.NDArray[np.bool_], list[int]]


def _examples(task: _ExamplesTask, report: WorkReport) -> _Rows:
    codec = ChatCodec(Tokenizer.from_str(task.tokenizer))
    transcripts = _transcripts(codec, task.queries, task.team_settings, task.seed, task.teacher)
    ids = np.array([token for one in transcripts for token in one.ids], np.int32)
    mask = np.array([own for one in transcripts for own in one.mask], np.bool_)
    return ids, mask, list(accumulate(len(one.ids) for one in transcripts))


def make_nano(
    folder: Path,
    pools: Sequence[QueryPool],
    team_settings: TeamSettings,
    nano: NanoConfig,
    seed: int,
    report: WorkReport,
    parts: int = 1,
    workers: Workers = ALONE,
) -> list[float]:
    """Write a nano and its tokenizer to `folder`, warm-started on states of all `pools`; returns the losses of the
    steps. Each step is cut into that number of `parts`, which the `workers` share, as they do the transcripts."""
    report("tokenizer", 0, 1)
    bytes_codec = make_byte_codec()
    few = min(TOKENIZER_DECISIONS, nano.decisions)
    sample = transcribe(bytes_codec, pools, team_settings, few, nano.teacher_share, seed, nano.teacher)
    tokenizer = train_tokenizer([bytes_codec.decode(list(one.ids)) for one in sample], NANO_VOCABULARY)
    report("tokenizer", 1, 1)
    codec = ChatCodec(tokenizer)
    queries, experts = _drawn_queries(pools, nano.decisions, seed), round(nano.decisions * nano.teacher_share)
    json = tokenizer.backend_tokenizer.to_str()
    tasks = [
        _ExamplesTask(json, of_whom[first : first + _DECISIONS_AT_ONCE], team_settings, seed, teacher)
        for of_whom, teacher in ((queries[:experts], nano.teacher), (queries[experts:], None))
        for first in range(0, len(of_whom), _DECISIONS_AT_ONCE)
    ]
    examples: list[Example] = []
    for ids, mask, ends in workers.each(_examples, tasks):
        examples += [(ids[start:stop], mask[start:stop]) for start, stop in pairwise([0, *ends])]
    report("transcripts", len(examples), len(examples))
    architecture = nano_config(codec.vocab_size, hidden_size=nano.hidden_size, layers=nano.layers)
    model = new_nano(seed, architecture)
    settings = SftSettings(
        steps=nano.steps,
        batch_tokens=_BATCH_TOKENS,
        learning_rate=3e-3 if nano.steps >= _SHORT else 6e-3,
        warmup_steps=_WARMUP_STEPS,
        weight_decay=_WEIGHT_DECAY,
        seed=seed,
        parts=parts,
    )
    losses = warm_start(model, examples, settings, lambda step, loss: report("warm start", step, nano.steps), workers)
    save_model(folder, model, tokenizer)
    return losses
