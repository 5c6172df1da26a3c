"""`train --dry-run`: how much memory a training takes, by part, and which settings make it fit.

Weights, adapters and optimizer states are counted exactly. Activations are what autograd keeps for the backward pass,
counted tensor by tensor as in section 4.1 of Korthikanti et al. (arXiv 2205.05198) for the blocks of Qwen3 and Llama,
in proportion to their widths for others: hidden size H, query width Q, key width K, MLP width I, adapter rank r, N
tokens of a micro-batch, per block

    lora   N (4 H + 3 Q + 3 K + 4 I + 7 r)       inputs and outputs of both norms, of query and key norms, of the
                                                 attention, of SiLU and its product, and the adapters' inner values
    full   N (6 H + 4 Q + 4 K + 4 I)             norms whose weights are trained keep their normalized input, too, and
                                                 so does the last one: N 2 H once

Without norms of queries and keys Q + K less in lora, 2 Q + 2 K less in full. All of it takes 4 bytes each. With
bfloat16 the inputs of norms still take 4 bytes (lora 2 H + Q + K, full 4 H + Q + K) and the others 2, but in `full`
each linear layer keeps its input for itself, 3 H more; and there is a bfloat16 copy of what is trained. Gradient
checkpointing keeps N H a block, and one block in full while it is computed again. The logits of S sampled tokens take
S V times 4 bytes, `LOGIT_COPIES` times. Compiled blocks (`policies.fused_blocks`) keep what products take and give and
what attention needs, N (4 H + 3 Q + 4 K + 3 I + 7 r) times 2 bytes, and compiled log-probs S V numbers twice. The KV
cache has 2 K numbers a token and block.

Phases follow one another, so the peak is what is always held plus the largest phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from backend.config.schema import Config
from backend.models.shape import Shape
from backend.policies.hardware import DeviceKind, Precision, Quantization, compiled_on, precision_on
from cryptosentinel.agents.registry import ROLES, roles_of
from cryptosentinel.llm.local.matrices import copies_head
from cryptosentinel.team import TOKENS_PER_COIN
from simulator.errors import UserError

Phase = Literal["always", "rollouts", "updates", "publishing"]
GIB = 2**30
FLOAT = 4  # bytes
LOGIT_COPIES, ENTROPY_COPIES = 4, 6  # logits, log-probs, products of the entropy; with a gradient through the entropy
MOMENTS = {"adamw": 2, "adamw8bit": 0.5}
NF4_BITS = 4.127  # with double quantization (arXiv 2305.14314, section 3)
BACKWARD_COPIES = 4  # of the MLP's width: gradients of the product, of SiLU, of gate and up
# Measured: the C library's heap on a CPU, by mode and checkpointing; torch's allocator on a GPU.
HEAP_SLACK = {("lora", False): 1.8, ("full", False): 1.25, ("lora", True): 4.0, ("full", True): 2.2}
DEVICE_SLACK = 1.1
RUNTIME = 6 * 2**27  # Python and its libraries
SERVER_RUNTIME = 3 * GIB  # vLLM's context and graphs: an allowance, not measured here
PREFILL_TOKENS, DECODE_ROWS, PREFIX_CACHE = 8192, 128, 2**28  # of `LocalEngine`; the last in bytes a role
TURNS = 7  # of a manager's conversation at most
PROMPT_TOKENS, RESULT_TOKENS = 1600, 150  # the longest prompt with schemas; a tool's answer
TIGHT = 0.9
_LEAST_CONTEXT = 2560  # that is suggested: shorter ones hold no decision with full prompts


@dataclass(frozen=True)
class MemoryPlan:
    """What the estimate depends on besides the architecture."""

    roles: int = len(ROLES)
    weights: Literal["lora", "full"] = "lora"
    rank: int = 16  # of the largest adapter; all are counted with it, on all linear layers
    precision: Precision = "float32"  # of the frozen base and of matrix products
    quantization: Quantization = "none"
    engine: Literal["local", "vllm"] = "local"
    answering: Precision = "float32"  # of the engine in this process
    micro_tokens: int = 8192  # padded tokens of a micro-batch, N
    micro_sampled: int = 4096  # the sampled ones of these, S
    rows: int = DECODE_ROWS  # conversations that are decoded at once
    context: int = 4096  # tokens of the longest of them
    entropy: bool = False  # whether it has a gradient
    moments: float = 2  # numbers that the optimizer keeps for each that is trained
    checkpointing: bool = False
    anchored: bool = False  # whether the KL is to initial weights that are not the base
    device: DeviceKind = "cpu"
    compiled: bool = False  # whether blocks and log-probs are compiled (`Hardware.compiled`)
    shared: bool = True  # whether the training starts a vLLM server on the trainer's device

    @property
    def number(self) -> int:
        """Bytes of a number in matrix products."""
        return FLOAT if self.precision == "float32" else FLOAT // 2


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
        """Bytes that a phase takes besides what is always held."""
        return sum(need.size for need in self.needs if need.phase == phase)

    @property
    def peak_phase(self) -> Phase:
        """The phase that takes the most."""
        phases: tuple[Phase, ...] = ("rollouts", "updates", "publishing")
        return max(phases, key=self.of)

    @property
    def total(self) -> int:
        """Bytes at the peak."""
        return self.of("always") + self.of(self.peak_phase)


def plan_of(config: Config, shape: Shape, device: DeviceKind = "cpu") -> MemoryPlan:
    """The plan of a configuration. The longest conversation takes all of a manager's turns at their longest, within
    `engine.context_tokens` and the model's positions. A server at `engine.url` holds its memory already."""
    training, engine, team = config.training, config.engine, config.team
    coins = config.coins_of_a_decision()
    full = team.prompts == "full" or (team.prompts == "auto" and bool(training.base_model))
    answer = team.answer_tokens(full) + TOKENS_PER_COIN * (coins - 1)
    turn = answer + team.thinking_tokens + RESULT_TOKENS * coins
    context = min(bound for bound in (PROMPT_TOKENS + TURNS * turn, shape.positions, engine.context_tokens) if bound)
    served = engine.kind == "vllm"
    micro = max(training.micro_batch_tokens, context)
    side_by_side = engine.concurrency if served else DECODE_ROWS
    return MemoryPlan(
        roles=len(roles_of(team.roles)),
        weights=training.weights,
        rank=training.lora_rank,
        precision=precision_on(training, device),
        quantization="nf4" if training.precision == "nf4" else "none",
        checkpointing=training.gradient_checkpointing,
        engine="vllm" if served else "local",
        answering="bfloat16" if training.precision == "bfloat16" else "float32",
        micro_tokens=micro,
        micro_sampled=round(micro * TURNS * answer / (PROMPT_TOKENS + TURNS * turn)),
        rows=min(side_by_side, training.queries_per_step * training.rollouts_per_query),
        context=context,
        entropy=training.entropy > 0.0,
        moments=MOMENTS[training.optimizer],
        anchored=bool(training.start_from) and training.kl > 0.0,
        device=device,
        compiled=compiled_on(training, device),
        shared=served and not engine.url,
    )


def estimate(shape: Shape, plan: MemoryPlan) -> Estimate:
    """What a training takes on the trainer's device, with its engine where that is on it too."""
    own = shape.adapter(plan.rank) if plan.weights == "lora" else shape.parameters
    needs = [
        Need("program and libraries", "always", RUNTIME),
        Need("base model", "always", base_bytes(shape, plan)),
        Need("policies of the roles", "always", plan.roles * own * FLOAT),
        Need("optimizer", "always", round(plan.roles * plan.moments * own * FLOAT)),
        Need("copies to roll back to", "always", plan.roles * own * FLOAT),
        *_updates(shape, plan, own),
    ]
    if plan.engine == "local":
        needs += _in_process(shape, plan)
    elif plan.shared:
        needs.append(_server(shape, plan))
    if plan.anchored:
        needs.append(Need("initial weights of the roles", "always", plan.roles * own * FLOAT))
        needs.append(Need("a role's weights while its initial ones answer", "updates", own * FLOAT))
    return Estimate(tuple(needs))


def _updates(shape: Shape, plan: MemoryPlan, own: int) -> list[Need]:
    """What one role's optimizer step takes besides weights and optimizer; it trains `own` numbers."""
    slack = HEAP_SLACK[plan.weights, plan.checkpointing] if plan.device == "cpu" else DEVICE_SLACK
    copies = FLOAT * (ENTROPY_COPIES if plan.entropy else LOGIT_COPIES)
    logits = plan.micro_sampled * shape.vocabulary * (2 * plan.number if plan.compiled else copies)
    backward = BACKWARD_COPIES * plan.micro_tokens * shape.intermediate * plan.number
    return [
        Need("what is trained, in bfloat16", "updates", 0 if plan.number == FLOAT else own * plan.number),
        Need("gradients of one role", "updates", own * FLOAT),
        Need("activations of a micro-batch", "updates", round(slack * activations(shape, plan))),
        # The head's forward pass and a block's backward pass are not at the same time.
        Need("logits, or a block's backward pass", "updates", max(logits, backward)),
    ]


def activations(shape: Shape, plan: MemoryPlan) -> int:
    """Bytes that are kept of a micro-batch for its backward pass, logits apart."""
    hidden, heads, wide = shape.hidden, shape.queries + shape.keys, 4 * shape.intermediate
    normed = heads if shape.head_norms else 0
    inner = round(sum(one.share for one in shape.linears)) * plan.rank
    if plan.weights == "lora" and plan.compiled and shape.standard:
        in_float, last = 0, 0  # what each product takes and gives, and what attention does
        short = 4 * hidden + 3 * heads + shape.keys + 3 * shape.intermediate + inner
    elif plan.weights == "lora":
        in_float, last = 2 * hidden + normed, 0
        short = 2 * hidden + 2 * heads + wide + inner
    else:
        in_float, last = 4 * hidden + normed, 2 * hidden * FLOAT
        short = (2 if plan.number == FLOAT else 5) * hidden + 2 * heads + normed + wide
    block = in_float * FLOAT + short * plan.number
    kept = shape.layers * hidden * plan.number + block if plan.checkpointing else shape.layers * block
    return plan.micro_tokens * (kept + last)


def base_bytes(shape: Shape, plan: MemoryPlan) -> int:
    """Bytes of the frozen base."""
    packed = shape.linear_numbers if plan.quantization == "nf4" else 0
    return round(packed * NF4_BITS / 8) + (shape.parameters - packed) * plan.number


def _in_process(shape: Shape, plan: MemoryPlan) -> Iterator[Need]:
    """The engine of this process: a merged copy per role, of which embedding and head are held once."""
    number = FLOAT if plan.answering == "float32" else FLOAT // 2
    copied = shape.parameters - shape.body
    if plan.device == "cpu" and shape.tied and copies_head(shape.embedding):
        copied += shape.embedding
    cache = 2 * shape.keys * shape.layers * plan.rows * plan.context * number
    prefill = min(PREFILL_TOKENS, plan.rows * plan.context) * FLOAT
    yield Need("engine: embedding and head", "always", copied * number)
    yield Need("engine: rotations of all positions", "always", shape.positions * shape.head_dim * FLOAT)
    yield Need("engine: merged blocks of the roles", "always", plan.roles * shape.body * number)
    yield Need("engine: prefix caches", "rollouts", plan.roles * min(PREFIX_CACHE, TURNS * cache))
    yield Need("engine: KV cache, prompts and rows", "rollouts", 2 * cache)
    read = prefill * (4 * shape.intermediate + 4 * shape.hidden + 2 * shape.queries)
    yield Need("engine: reading prompts", "rollouts", read)
    # A tied head is copied beside its embedding while a role is merged.
    yield Need("engine: merging one role", "publishing", 2 * (shape.body + shape.embedding) * FLOAT)


def _server(shape: Shape, plan: MemoryPlan) -> Need:
    """A vLLM server in bfloat16: weights once, adapters beside them, the KV cache. It reserves `engine.gpu_share`
    anyway."""
    numbers = shape.parameters + plan.roles * shape.adapter(plan.rank)
    numbers += 2 * shape.keys * shape.layers * plan.rows * plan.context
    return Need("vLLM: weights, adapters, KV cache, graphs", "always", numbers * FLOAT // 2 + SERVER_RUNTIME)


def memory_verdict(needed: Estimate, memory: int) -> str:
    """Whether it fits into `memory` bytes, in a sentence."""
    largest = max((one for one in needed.needs if one.phase in ("always", needed.peak_phase)), key=lambda one: one.size)
    share = needed.total / memory
    return (
        f"{'cannot fit' if share > 1.0 else 'tight' if share > TIGHT else 'fits'}: {gib(needed.total)} at the peak "
        f"({needed.peak_phase}), {gib(memory)} are free; most of it is {largest.part} with {gib(largest.size)}"
    )


def require(config: Config, shape: Shape, device: DeviceKind, memory: int) -> str:
    """The verdict on a training. Raises `UserError`, with what takes less, where it takes more than `memory` bytes."""
    needed = estimate(shape, plan_of(config, shape, device))
    verdict = memory_verdict(needed, memory)
    if needed.total <= memory:
        return verdict
    less = [f"{setting} ({gib(total)})" for total, setting in smaller(config, shape, device) if total < needed.total]
    raise UserError(f"{verdict}. Take {', '.join([*less, 'a smaller base'])} or a larger machine")


def smaller(config: Config, shape: Shape, device: DeviceKind) -> list[tuple[int, str]]:
    """What the training takes with one setting changed, and that setting, the least first."""
    training, engine, plan = config.training, config.engine, plan_of(config, shape, device)
    whole, context = training.weights == "full", max(_LEAST_CONTEXT, plan.context // 2)
    micro = max(plan.context, training.micro_batch_tokens // 2)
    settings = [
        ("training", "lora_rank", 16, whole),
        ("training", "gradient_checkpointing", True, not training.gradient_checkpointing),
        ("training", "precision", "auto", device == "cuda" and plan.precision == "float32"),
        ("training", "precision", "nf4", device == "cuda" and training.precision != "nf4" and not whole),
        ("training", "micro_batch_tokens", micro, training.micro_batch_tokens > plan.context),
        ("engine", "concurrency", engine.concurrency // 2, plan.shared and engine.concurrency > 1),
        ("engine", "context_tokens", context, plan.context > _LEAST_CONTEXT),
    ]
    found = []
    for section, key, value, applies in settings:
        if applies:
            part = getattr(config, section).model_copy(update={key: value})
            plan = plan_of(config.model_copy(update={section: part}), shape, device)
            found.append((estimate(shape, plan).total, f"{section}.{key}={value}"))
    return sorted(found)


def gib(size: float) -> str:
    """Bytes in words."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"
