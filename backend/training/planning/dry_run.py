"""One step of a training with random weights of the real architecture: whether it runs here, how long it takes, how
much memory. Nothing is downloaded and nothing is stored.

The parts are those of a real step, each timed, with the most memory that it took: the model is built, the policies are
made, the engine gets their weights, one query is rolled out twice and its sub-agents are asked, all is credited, each
role makes one optimizer step, and its new weights go to the engine. The tokenizer is that of bytes and the prompts are
without the tools' schemas, so that a step is short; the projection puts the schemas in. Random weights say nothing
valid: the manager asks nobody, all rewards tie, and so the advantages of the optimizer step are made up, +1 and -1 in
turn.

A model that is too large for the machine is cut to its first blocks, and the report says to how many.
"""

from __future__ import annotations

import copy
import resource
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedConfig

from backend.builders.loaded_team import team_settings
from backend.config.schema import Config
from backend.models.architectures import architecture_of
from backend.models.shape import Shape
from backend.policies.adapter_shapes import adapter_shapes, largest_rank
from backend.policies.hardware import Hardware, hardware_of
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.alignment import align
from backend.training.algorithm.credit import assign_credit, score_main, score_sub
from backend.training.algorithm.trajectory import Trajectory
from backend.training.curriculum.curriculum import Curriculum
from backend.training.curriculum.queries import Query, QueryPool, gross_limit
from backend.training.learning.chosen_recipe import recipe_of
from backend.training.learning.role_trainer import RoleTrainer
from backend.training.planning.memory_estimate import (
    PROMPT_TOKENS,
    RESULT_TOKENS,
    Estimate,
    MemoryPlan,
    estimate,
    machine_memory,
    require,
)
from backend.training.rollout.collect import RolloutSettings, collect, practise, rollout_settings
from cryptosentinel.agents.registry import MANAGER, roles_of
from cryptosentinel.llm.architecture import random_model, text_config
from cryptosentinel.llm.chat_codec import make_byte_codec
from cryptosentinel.llm.engine import Request, Sampling
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.team import Team
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

ROLLOUTS = 2
BARS = 400  # of the market: history for the tools, a horizon, and something between
SAMPLED = 16  # tokens of an answer at most
CONTEXT = 512  # bytes that the longest conversation may have
SPOKEN_TURNS = 3  # of a conversation, in the projection: two look-ups or consultations, and the answer
TOKEN_BYTES = 3.5  # English and JSON in a large vocabulary, in the projection
ROOM = 0.9  # of the free memory: others use the machine, too
STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class Part:
    """A part of the step: seconds, and bytes that the process held at most in it."""

    name: str
    seconds: float
    peak: int


@dataclass(frozen=True)
class DryRun:
    """What was found. `shape` is the real model's, `layers` how many of its blocks were built.

    expected    the estimate for what was built and done, to hold against `peak`
    prompts     tokens of the distinct prompts that were read again, and `sampled` those that then were sampled
    trained     tokens of the `conversations` that were trained on, with their prompts
    """

    shape: Shape
    layers: int
    parts: tuple[Part, ...]
    expected: Estimate
    prompts: int
    sampled: int
    trained: int
    conversations: int

    def seconds(self, name: str) -> float:
        """Of a part."""
        return next(part.seconds for part in self.parts if part.name == name)

    @property
    def peak(self) -> int:
        """Bytes at most in any part."""
        return max(part.peak for part in self.parts)


@dataclass
class _Stopwatch:
    """Takes the time and the most memory of blocks."""

    device: torch.device
    parts: list[Part] = field(default_factory=list)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure a block. The CPU's memory is looked at every few milliseconds; the GPU's allocator keeps count."""
        began = time.perf_counter()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            yield
            torch.cuda.synchronize(self.device)
            peak = torch.cuda.max_memory_allocated(self.device)
        else:
            with _watching() as seen:
                yield
            peak = max(seen)
        self.parts.append(Part(name, time.perf_counter() - began, peak))


@contextmanager
def _watching(interval: float = 0.005) -> Iterator[list[int]]:
    """Resident bytes of this process during a block, as (most so far)."""
    seen, done = [_resident()], threading.Event()

    def look() -> None:
        while not done.wait(interval):
            seen[0] = max(seen[0], _resident())

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()
        seen[0] = max(seen[0], _resident())


def _resident() -> int:
    """Resident bytes of this process; where the system does not say, the most it ever had."""
    try:
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def dry_run(config: Config, *, sampled: int = SAMPLED, memory: int | None = None) -> DryRun:
    """Do one step as the module says, on the hardware of the configuration; `sampled` tokens an answer at most,
    `memory` bytes instead of those free now.

    Raises `UserError` for a base of unknown architecture, and where not even one block of it fits.
    """
    architecture = architecture_of(config.training, config.nano)
    shape = Shape.of(architecture)
    hardware = hardware_of(config.training)
    room = machine_memory(hardware.device) if memory is None else memory
    plan = _plan(config, sampled, hardware)
    layers = _layers_that_fit(shape, plan, room)
    watch = _Stopwatch(torch.device(hardware.device))
    roles = roles_of(config.team.roles)
    with watch.part("build the model"):
        model = random_model(config.training.seed, cut_to(architecture, layers))
    with watch.part("make the policies"):
        lora = adapter_shapes(config.training)
        policies = RolePolicies(model, list(roles), config.training.weights, lora, config.training.seed, hardware)
        del model
    codec = make_byte_codec()
    engine = LocalEngine(codec, policies.base_config, {}, device=hardware.device)
    with watch.part("weights to the engine"):
        _publish(policies, engine)
    settings = replace(
        team_settings(config.team, config.training.temperature, context_tokens=shape.positions),
        sampling=Sampling(config.training.temperature, sampled),
        prompts="short",
        schemas_in_prompt=False,
    )
    team = Team(codec, engine.policy_version, settings)
    queries, judged = _query(config)
    with watch.part("rollouts"):
        groups = collect(team, engine, queries, judged, 1)
        practice = practise(team, engine, queries, judged, 1)
    spoken = [call for group in groups for one in group for call in (one.main, *one.subs)]
    spoken += [call for alone in practice for one in alone for call in one.subs]
    with watch.part("credit"):
        stage, recipe = Curriculum(config.training).stage(2), recipe_of(config.training)
        assign_credit(score_main(groups, stage.alpha), recipe, weighted=False)
        weights = partial(align, method=config.training.alignment, target=1, rng=np.random.default_rng(0))
        for role in roles:
            if role != MANAGER.key:
                assign_credit(score_sub(practice, role, stage.beta, weights), recipe)
    first = [call.ids[: int(np.flatnonzero(call.mask)[0])].tolist() for call in spoken if call.role == MANAGER.key]
    engine.forget()
    with watch.part("read prompts again"):
        engine.generate([_request(ids, 1, seed) for seed, ids in enumerate(first)])
    with watch.part("sample again"):
        answers = engine.generate([_request(ids, sampled + 1, seed) for seed, ids in enumerate(first)])
    with watch.part("optimizer steps"):
        for role in roles:
            _update(policies, role, [call for call in spoken if call.role == role], config)
    with watch.part("new weights to the engine"):
        _publish(policies, engine)
    return DryRun(
        shape=shape,
        layers=layers,
        parts=tuple(watch.parts),
        expected=estimate(replace(shape, layers=layers), plan),
        prompts=sum(len(ids) for ids in {tuple(ids) for ids in first}),
        sampled=sum(len(answer.ids) for answer in answers),
        trained=sum(len(call.ids) for call in spoken),
        conversations=len(spoken),
    )


def _plan(config: Config, sampled: int, hardware: Hardware) -> MemoryPlan:
    """What the dry run itself takes: an engine in this process, one conversation in a micro-batch."""
    return MemoryPlan(
        weights=config.training.weights,
        rank=largest_rank(config.training),
        precision=hardware.precision,
        quantization=hardware.quantization,
        checkpointing=hardware.checkpointing,
        micro_tokens=CONTEXT,
        micro_sampled=sampled,
        roles=len(roles_of(config.team.roles)),
        rows=len(roles_of(config.team.roles)) * ROLLOUTS,
        context=CONTEXT,
        entropy=config.training.entropy > 0.0,
        device=hardware.kind,
    )


def _layers_that_fit(shape: Shape, plan: MemoryPlan, room: int) -> int:
    """The most blocks whose dry run fits. Raises `UserError` where one does not."""
    for layers in range(shape.layers, 1, -1):
        if estimate(replace(shape, layers=layers), plan).total <= ROOM * room:
            return layers
    require(estimate(replace(shape, layers=1), plan), room)
    return 1


def cut_to(architecture: PreTrainedConfig, layers: int) -> PreTrainedConfig:
    """The architecture with its first blocks only; lists with an entry a block are cut alike."""
    cut = copy.deepcopy(architecture)
    text = text_config(cut)
    whole = text.num_hidden_layers
    for name, value in vars(text).items():
        if isinstance(value, list) and len(value) == whole:
            setattr(text, name, value[:layers])
    text.num_hidden_layers = layers
    return cut


def _query(config: Config) -> tuple[list[Query], RolloutSettings]:
    """One state of a small generated market, and how it is rolled out: the configuration's costs and limits."""
    horizon = config.team.horizon_bars
    market = generate(SyntheticConfig(bars=BARS + horizon, seed=1, symbols=_coins(config)))
    pool = QueryPool(market, 0, len(market), horizon, gross_limit=gross_limit(config))
    queries = pool.draw(config.training.seed, 0, 1, easy=False)
    settings = rollout_settings(config, ROLLOUTS)
    return queries, settings


def _coins(config: Config) -> tuple[str, ...]:
    """The coins of a decision."""
    return tuple(f"COIN{number}USDT" if number else "AAAUSDT" for number in range(config.coins_of_a_decision()))


def _publish(policies: RolePolicies, engine: LocalEngine) -> None:
    for role in policies.roles:
        engine.set_weights(role, policies.merged_state(role), policies.version(role))


def _request(ids: list[int], tokens: int, seed: int) -> Request:
    return Request(MANAGER.key, tuple(ids), Sampling(1.0, tokens), seed)


def _update(policies: RolePolicies, role: str, spoken: Sequence[Trajectory], config: Config) -> None:
    """One optimizer step of a role on its conversations, one in a micro-batch, with advantages that are made up."""
    training = config.training.model_copy(update={"minibatches": 1, "micro_batch_tokens": 1})
    signs = [(-1.0) ** number for number in range(len(spoken))]
    RoleTrainer(policies, role, training).step(spoken, signs, [1.0 / len(spoken)] * len(spoken))


# -- projection -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Projection:
    """Seconds that a step of the configuration's own size would take on this machine, at most: as if all its
    conversations were spoken one beside another as slowly as here, and no prompt shared."""

    conversations: int
    tokens: int
    rollouts: float
    updates: float
    publishing: float

    @property
    def step(self) -> float:
        """Of the whole step."""
        return self.rollouts + self.updates + self.publishing


def project(run: DryRun, config: Config) -> Projection:
    """From the dry run's rates, scaled by the number of blocks, to the configuration's batch.

    Assumed: each role speaks once a rollout, in `SPOKEN_TURNS` turns of `team.max_tokens` and
    `team.thinking_tokens` tokens; a full prompt has `memory.PROMPT_TOKENS`, and otherwise a token of the model's own
    has `TOKEN_BYTES` bytes.
    """
    training = config.training
    conversations = training.queries_per_step * training.rollouts_per_query * len(roles_of(config.team.roles))
    bytes_each = run.trained / run.conversations
    full = bool(training.base_model)
    prompt = PROMPT_TOKENS if full else bytes_each / TOKEN_BYTES
    read = prompt + SPOKEN_TURNS * RESULT_TOKENS
    sampled = SPOKEN_TURNS * (config.team.answer_tokens(full) + config.team.thinking_tokens)
    deeper = run.shape.layers / run.layers
    reading = run.seconds("read prompts again") / run.prompts
    sampling = run.seconds("sample again") / run.sampled
    training_rate = run.seconds("optimizer steps") / run.trained
    return Projection(
        conversations=conversations,
        tokens=round(conversations * (read + sampled)),
        rollouts=deeper * conversations * (read * reading + sampled * sampling),
        updates=deeper * conversations * (read + sampled) * training_rate,
        publishing=deeper * run.seconds("new weights to the engine"),
    )
