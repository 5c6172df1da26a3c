"""How much memory a training takes, before it is started: a table of what is held, by part, and what is the most of it
at a time.

Weights, adapters and optimizer states are counted exactly. Activations are what autograd keeps for the backward pass,
counted tensor by tensor as in section 4.1 of Korthikanti et al. (arXiv 2205.05198), for the blocks of Qwen3 and of
the Llama family, and taken for those of any other architecture in proportion to their widths: hidden size H,
query width Q, key width K, MLP width I, adapter rank r, N tokens of a micro-batch, per block

    lora   N (4 H + 3 Q + 3 K + 4 I + 7 r)       inputs and outputs of both norms, of query and key norms, of the
                                                 attention, of SiLU and its product, and the adapters' inner values
    full   N (6 H + 4 Q + 4 K + 4 I)             norms whose weights are trained keep their normalised input, too, and
                                                 so does the last one: N 2 H once

Without norms of queries and keys (Llama, Qwen2) Q + K less in lora, 2 Q + 2 K less in full. All of it
takes 4 bytes each. With bfloat16 the inputs of norms, which compute in float32, still take 4 bytes (lora 2 H + Q + K,
full 4 H + Q + K) and the others 2, but in `full` each linear layer keeps its input for itself, 3 H more; and there is
a bfloat16 copy of what is trained. Gradient checkpointing keeps N H a block, and one block in full while it is computed
again. The logits of a micro-batch's S sampled tokens stand S V times 4 bytes, in `LOGIT_COPIES` at once: logits,
log-probs, and the two products of the entropy. The KV cache has 2 K numbers a token and block, in the numbers of the
engine of this process. NF4 takes `NF4_BITS` for a number of the blocks' linear layers.

Phases follow one another, so the most is what is always held and the largest phase. On the CPU, blocks below 32 MiB
come from the C library's heap, which keeps what is freed between blocks that are not. `HEAP_SLACK` times the
activations is what was measured of it: 1.6 to 2.1 with adapters, 1.2 with whole models; with checkpointing, where
much is freed again and again, 3.3 to 5 and 2.4. With MALLOC_MMAP_THRESHOLD_=1048576 in the environment it was 1.05.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from backend.config.schema import Config
from backend.models.shape import Shape
from backend.policies.adapter_shapes import largest_rank
from backend.policies.hardware import DeviceKind, Precision, Quantisation, precision_on
from cryptosentinel.agents.registry import ROLES, roles_of
from cryptosentinel.llm.local.matrices import copies_head
from cryptosentinel.team import TOKENS_PER_COIN
from simulator.errors import UserError

Phase = Literal["always", "loading", "rollouts", "updates", "publishing"]
GIB = 2**30
FLOAT = 4  # bytes; what is trained is float32, and so is what the engine of this process computes, unless it is asked
LOGIT_COPIES = 4
MOMENTS = {"adamw": 2, "adamw8bit": 0.5, "sgd": 1, "adafactor": 0}  # a row and a column of a matrix are next to nothing
ENTROPY_COPIES = 6  # with a gradient through the entropy
NF4_BITS = 4.127  # with double quantization (arXiv 2305.14314, section 3)
BACKWARD_COPIES = 4  # of the MLP's width: gradients of the product, of SiLU, of gate and up
HEAP_SLACK = {"lora": 1.8, "full": 1.25}
HEAP_SLACK_AGAIN = {"lora": 4.0, "full": 2.2}  # with gradient checkpointing, of the one block
DEVICE_SLACK = 1.1  # of torch's own allocator on a GPU; with it the estimate was 1.04 and 1.05 times what a step took
RUNTIME = 6 * 2**27  # Python and its libraries, with room for small things: 0.75 GiB
SERVER_RUNTIME = 3 * GIB  # vLLM's context and graphs on a device: an allowance, not measured here
PREFILL_TOKENS = 8192  # of `LocalEngine`
DECODE_ROWS = 128  # of `LocalEngine`
PREFIX_CACHE = 2**28  # bytes a role, the same
TURNS = 7  # of a manager's conversation at most
PROMPT_TOKENS, RESULT_TOKENS = 1600, 150  # the longest prompt with schemas, of some 5,500 bytes; a tool's answer
TIGHT = 0.9


@dataclass(frozen=True)
class MemoryPlan:
    """What the estimate depends on beside the architecture.

    rank              of the largest adapter; all are counted with it, on all linear layers
    precision         of the frozen base and of matrix products
    quantization      of the base's linear layers
    answering         precision of the engine of this process
    micro_tokens      padded tokens of a micro-batch, N
    micro_sampled     sampled ones among them, S
    rows, context     conversations that are decoded at once, and tokens of the longest
    entropy           whether the entropy has a gradient
    moments           numbers that the optimizer keeps for each that is trained
    checkpointing     whether blocks are computed again in the backward pass
    anchored          whether the weights that the run began with are kept for the KL, which is else to the base
    device            whose allocator it is
    processes         among which whole models are divided (`training.sharding`)
    shared            whether a vLLM server runs on the same device as the trainer
    """

    roles: int = len(ROLES)
    weights: Literal["lora", "full"] = "lora"
    rank: int = 16
    precision: Precision = "float32"
    quantization: Quantisation = "none"
    engine: Literal["local", "vllm"] = "local"
    answering: Precision = "float32"
    micro_tokens: int = 8192
    micro_sampled: int = 4096
    rows: int = DECODE_ROWS
    context: int = 4096
    entropy: bool = False
    moments: float = 2
    checkpointing: bool = False
    anchored: bool = False
    device: DeviceKind = "cpu"
    processes: int = 1
    shared: bool = True

    @property
    def number(self) -> int:
        """Bytes of a number where matrix products are done."""
        return FLOAT if self.precision == "float32" else FLOAT // 2

    @property
    def answered(self) -> int:
        """Bytes of a number in the engine of this process."""
        return FLOAT if self.answering == "float32" else FLOAT // 2


@dataclass(frozen=True)
class Need:
    """Bytes that a part takes, and when."""

    part: str
    phase: Phase
    size: int


@dataclass(frozen=True)
class Estimate:
    """All needs of a training on one device."""

    needs: tuple[Need, ...]

    def of(self, phase: Phase) -> int:
        """Bytes that a phase takes beside what is always held."""
        return sum(need.size for need in self.needs if need.phase == phase)

    @property
    def peak_phase(self) -> Phase:
        """The phase that takes the most."""
        phases: tuple[Phase, ...] = ("loading", "rollouts", "updates", "publishing")
        return max(phases, key=self.of)

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return self.of("always") + self.of(self.peak_phase)

    @property
    def largest(self) -> Need:
        """What takes the most at the peak."""
        return max((need for need in self.needs if need.phase in ("always", self.peak_phase)), key=lambda one: one.size)


def plan_of(config: Config, shape: Shape, device: DeviceKind = "cpu") -> MemoryPlan:
    """The plan of a configuration. The longest conversation is assumed to take all of a manager's turns at their
    longest; it is bound by `engine.context_tokens` and the model's positions."""
    training = config.training
    coins = config.coins_of_a_decision()
    full = config.team.prompts == "full" or (config.team.prompts == "auto" and bool(training.base_model))
    answer = config.team.answer_tokens(full) + TOKENS_PER_COIN * (coins - 1)
    turn = answer + config.team.thinking_tokens + RESULT_TOKENS * coins
    bounds = [PROMPT_TOKENS + TURNS * turn, shape.positions, config.engine.context_tokens]
    context = min(bound for bound in bounds if bound)
    served = config.engine.kind == "vllm"
    side_by_side = config.engine.concurrency if served else DECODE_ROWS
    micro = max(training.micro_batch_tokens, context)
    return MemoryPlan(
        roles=len(roles_of(config.team.roles)),
        weights=training.weights,
        rank=largest_rank(training),
        precision=precision_on(training, device),
        quantization=training.quantization,
        checkpointing=training.gradient_checkpointing,
        engine="vllm" if served else "local",
        answering="bfloat16" if config.engine.precision == "bfloat16" else "float32",
        micro_tokens=micro,
        micro_sampled=round(micro * TURNS * answer / (PROMPT_TOKENS + TURNS * turn)),
        rows=min(side_by_side, training.queries_per_step * training.rollouts_per_query),
        context=context,
        entropy=training.entropy > 0.0,
        moments=MOMENTS[training.optimizer],
        anchored=bool(training.start_from) and training.kl > 0.0,
        device=device,
        processes=training.data_parallel if training.sharding == "fsdp" else 1,
        shared=device == "cuda" or not torch.cuda.is_available(),
    )


def estimate(shape: Shape, plan: MemoryPlan) -> Estimate:
    """What a training takes on the trainer's device, with its engine unless that is a server on another one."""
    own = _own(shape, plan)
    part = _part(shape, plan)
    needs = [
        Need("program and libraries", "always", RUNTIME),
        Need("base model", "always", base_bytes(shape, plan) // plan.processes),
        Need("policies of the roles", "always", plan.roles * part * FLOAT),
        Need("optimizer", "always", round(plan.roles * plan.moments * part * FLOAT)),
        *updates(shape, plan),
    ]
    if part == own or plan.device == "cpu":  # those of divided models lie in the machine's memory
        needs.append(Need("copies to roll back to", "always", plan.roles * own * FLOAT))
    if plan.anchored:
        needs.append(Need("what the roles began with", "always", plan.roles * part * FLOAT))
        needs.append(Need("a role's weights while its start answers", "updates", part * FLOAT))
    if plan.device == "cpu":  # where models are loaded, for a GPU too
        needs.append(Need("second copy of the base", "loading", shape.parameters * FLOAT))
    if plan.engine == "local":
        needs += _in_process(shape, plan)
    elif plan.shared:
        needs += server(shape, plan).needs
    return Estimate(tuple(needs))


def updates(shape: Shape, plan: MemoryPlan) -> list[Need]:
    """What one role's optimizer step takes beside weights and optimizer."""
    own = _own(shape, plan)
    heap = HEAP_SLACK_AGAIN if plan.checkpointing else HEAP_SLACK
    slack = heap[plan.weights] if plan.device == "cpu" else DEVICE_SLACK
    tokens = plan.micro_tokens
    logits = plan.micro_sampled * shape.vocabulary * FLOAT * (ENTROPY_COPIES if plan.entropy else LOGIT_COPIES)
    backward = BACKWARD_COPIES * tokens * shape.intermediate * plan.number
    gathered = 0
    if plan.processes > 1:  # two blocks, of which the second is on its way, and what is around the blocks
        gathered = (shape.parameters - shape.body + 2 * shape.body // shape.layers) * plan.number
    shortened = [Need("what is trained, in bfloat16", "updates", own * plan.number)]
    if plan.number == FLOAT or _part(shape, plan) < own:  # a divided model is shortened as it is gathered
        shortened = []
    return [
        *shortened,
        *([Need("gathered layers of a divided model", "updates", gathered)] if gathered else []),
        Need("gradients of one role", "updates", _part(shape, plan) * FLOAT),
        Need("activations of a micro-batch", "updates", round(slack * activations(shape, plan))),
        # The head's pass forward and a block's pass backward are not at the same time.
        Need("logits, or a block's backward pass", "updates", max(logits, backward)),
    ]


def activations(shape: Shape, plan: MemoryPlan) -> int:
    """Bytes that are kept of a micro-batch for its backward pass, logits apart."""
    hidden, heads, wide = shape.hidden, shape.queries + shape.keys, 4 * shape.intermediate
    normed = heads if shape.head_norms else 0
    if plan.weights == "lora":
        in_float = 2 * hidden + normed
        short = 2 * hidden + 2 * heads + wide + round(sum(one.share for one in shape.linears)) * plan.rank
        last = 0
    else:
        in_float = 4 * hidden + normed
        short = (2 if plan.number == FLOAT else 5) * hidden + 2 * heads + normed + wide
        last = 2 * hidden * FLOAT
    block = in_float * FLOAT + short * plan.number
    kept = shape.layers * hidden * plan.number + block if plan.checkpointing else shape.layers * block
    return plan.micro_tokens * (kept + last)


def base_bytes(shape: Shape, plan: MemoryPlan) -> int:
    """Bytes of the frozen base."""
    if plan.quantization == "none":
        return shape.parameters * plan.number
    linears = shape.linear_numbers
    return round(linears * NF4_BITS / 8) + (shape.parameters - linears) * plan.number


def _own(shape: Shape, plan: MemoryPlan) -> int:
    """Numbers that one role trains."""
    return shape.adapter(plan.rank) if plan.weights == "lora" else shape.parameters


def _part(shape: Shape, plan: MemoryPlan) -> int:
    """Those of them that this process holds: adapters are not divided."""
    return _own(shape, plan) if plan.weights == "lora" else -(-shape.parameters // plan.processes)


def _in_process(shape: Shape, plan: MemoryPlan) -> list[Need]:
    """The engine of this process: a merged copy per role, of which embedding and head are held once."""
    copied = shape.parameters - shape.body
    if plan.device == "cpu" and shape.tied and copies_head(shape.embedding):
        copied += shape.embedding
    cache = 2 * shape.keys * shape.layers * plan.rows * plan.context * plan.answered
    read = min(PREFILL_TOKENS, plan.rows * plan.context)
    prefill = read * (4 * shape.intermediate + 4 * shape.hidden + 2 * shape.queries) * FLOAT
    # A tied head is copied beside its embedding while a role is merged.
    merged = shape.body + 2 * shape.embedding
    return [
        Need("engine: embedding and head", "always", copied * plan.answered),
        Need("engine: rotations of all positions", "always", shape.positions * shape.head_dim * FLOAT),
        Need("engine: merged blocks of the roles", "always", plan.roles * shape.body * plan.answered),
        Need("engine: prefix caches", "rollouts", plan.roles * min(PREFIX_CACHE, TURNS * cache)),
        Need("engine: KV cache, prompts and rows", "rollouts", 2 * cache),
        Need("engine: reading prompts", "rollouts", prefill),
        Need("engine: merging one role", "publishing", (merged + shape.body) * FLOAT),
    ]


def server(shape: Shape, plan: MemoryPlan) -> Estimate:
    """What a vLLM server takes on its device, in bfloat16: weights once, adapters beside them. By default it reserves
    nine tenths of a GPU, whatever it needs."""
    half = FLOAT // 2
    cache = 2 * shape.keys * shape.layers * plan.rows * plan.context * half
    return Estimate(
        (
            Need("vLLM: weights", "always", shape.parameters * half),
            Need("vLLM: adapters", "always", plan.roles * shape.adapter(plan.rank) * half),
            Need("vLLM: KV cache", "always", cache),
            Need("vLLM: context and graphs", "always", SERVER_RUNTIME),
        )
    )


# -- the machine ----------------------------------------------------------------------------------------------------


def machine_memory(device: str = "cpu") -> int:
    """Bytes that are free on the device: of the machine, or of the limit that its container sets; of the GPU for a
    `cuda` device."""
    if torch.device(device).type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass  # not Linux: pages that hold files count as taken
    return min([free, *_container_room()])


def _container_room() -> list[int]:
    """What the control group of a container (version 2) leaves, if there is one with a limit."""
    group = Path("/sys/fs/cgroup")
    try:
        return [int((group / "memory.max").read_text()) - int((group / "memory.current").read_text())]
    except (OSError, ValueError):  # no such group, or "max"
        return []


def memory_verdict(needed: Estimate, memory: int) -> str:
    """Whether it fits, in a sentence; `memory` in bytes."""
    share, largest = needed.total / memory, needed.largest
    said = (
        f"{gib(needed.total)} at the peak ({needed.peak_phase}), {gib(memory)} are free; the most of it is "
        f"{largest.part} with {gib(largest.size)}"
    )
    if share > 1.0:
        return f"cannot fit: {said}"
    return f"tight: {said}" if share > TIGHT else f"fits: {said}"


def require(needed: Estimate, memory: int) -> None:
    """Raise `UserError`, with what to do, where a training cannot fit."""
    if needed.total > memory:
        raise UserError(f"{memory_verdict(needed, memory)}. {_advice(needed.largest.part)}")


def _advice(part: str) -> str:
    """What makes the largest part smaller."""
    if part.startswith("engine: merged"):
        return "Serve the roles by vLLM (engine.kind), which holds the base once, or take a smaller base"
    if part.startswith(("activations", "logits")):
        return (
            "Set training.gradient_checkpointing = true, lower team.max_tokens, team.thinking_tokens or "
            "engine.context_tokens, or take a smaller base"
        )
    if "KV cache" in part:
        return "Lower engine.context_tokens, team.max_tokens or training.rollouts_per_query"
    if part.startswith(("policies", "copies", "optimizer", "gradients")):
        return "Train adapters (training.weights = lora) of a lower training.lora_rank"
    return "Take a smaller base, or a machine with more memory"


def gib(size: float) -> str:
    """As people read it."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"


def rows(needed: Estimate) -> Sequence[tuple[str, str, str]]:
    """(part, when, size), the largest first within a phase."""
    order = ("always", "loading", "rollouts", "updates", "publishing")
    ranked = sorted(needed.needs, key=lambda need: (order.index(need.phase), -need.size))
    return [(need.part, need.phase, gib(need.size)) for need in ranked]
