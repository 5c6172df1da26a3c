"""Several processes, each with a GPU, that compute one optimizer step together: data parallelism over micro-batches.

One process is the leader: it alone has the optimizer, the curriculum and the store. The followers hold the same base
model and no state of their own. For each update they get the role's parameters (a broadcast) and some of its
micro-batches. Their gradients are summed into the leader's (a reduce). The leader then clips and steps as if it had
computed all gradients itself. The denominators are those of the whole batch (`objective.normalizer`), so the sum of the
gradients is the gradient of the whole batch, and the parameters after a step are those of one process to float
rounding. The processes cannot drift apart, and a rollback or a resume concerns the leader alone.

**A base that one GPU does not hold** (`training.sharding = "fsdp"`, `ShardedGradients`). The same, with the models
divided among the processes (`policies.sharding`): every process then makes as many passes as the others, if need be
over a micro-batch of another one, of which it adds nothing. Adapters stay whole, and nothing else changes. What is
trained as a whole model is divided with its gradients and its optimizer, so all processes make the step, each of its
part; its whole weights are gathered in the leader's memory, for a file, a rollback or an engine.

Tensors go by `torch.distributed`: gloo on CPUs, NCCL between GPUs. Accelerate and DDP would add nothing: they average
where we sum, expect equally many backward passes in each process, and step in each. Tasks and answers go by pipes,
because a pipe shows at once that the other process has died.
"""

from __future__ import annotations

import io
import multiprocessing as mp
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from backend.config.training import TrainingConfig
from backend.policies.build import role_policies
from backend.policies.hardware import hardware_of
from backend.policies.role_policies import RolePolicies
from backend.policies.sharding import ShardGroup, without_content
from backend.policies.temporary import temporary_folder
from backend.training.learning.batches import MicroBatch, StepStats
from backend.training.learning.optimizers import LocalOptimizer, RoleOptimizer
from backend.training.learning.role_trainer import (
    GradientPool,
    LocalGradients,
    PolicyGradient,
    local_optimizer,
)
from simulator.errors import RunFailed

_TENSOR_TIMEOUT = timedelta(minutes=30)  # for one broadcast or reduce; during rollouts nobody waits for a tensor
_EXIT_SECONDS = 5.0  # that a process has to end by itself before it is killed


@dataclass(frozen=True)
class _Part:
    """The micro-batches of one process; `accompanied` is one of another process that it computes as well, for as many
    passes as the others make."""

    batches: Sequence[MicroBatch]
    accompanied: MicroBatch | None = None


@dataclass(frozen=True)
class _Task:
    """What a follower computes for a role: a gradient, or log-probs alone where `total` is None."""

    role: str
    config: TrainingConfig
    part: _Part
    total: float | None
    temperature: float


@dataclass(frozen=True)
class _Call:
    """A method that a follower calls of its policies, or of the role's optimizer, while the leader does its part."""

    target: str  # "policies" or "optimizer"
    role: str
    method: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class _NewOptimizer:
    """A follower makes an optimizer of its part of the role's weights, in place of the former one."""

    role: str
    config: TrainingConfig


class DataParallelGradients:
    """The leader's side: a `GradientPool` of `training.data_parallel` processes, this one included. `close` ends the
    followers, and so does the end of this process."""

    def __init__(self, base: Path, training: TrainingConfig, roles: Sequence[str], start: Path | None = None) -> None:
        """Start `training.data_parallel - 1` followers over the base model in `base` and the weights in `start`.

        Raises `ConfigError` where this machine has fewer GPUs, `RunFailed` where a process does not start.
        """
        self._size = training.data_parallel
        self._device = torch.device(hardware_of(training).device)
        self._folder = temporary_folder("gradients")
        meeting = str(self._folder / "meeting")
        context = mp.get_context("spawn")
        self._followers: list[tuple[SpawnProcess, Connection]] = []
        for rank in range(1, self._size):
            ours, theirs = context.Pipe()
            arguments = (rank, meeting, base, start, training, tuple(roles), torch.get_num_threads(), theirs)
            process = context.Process(target=_follow, args=arguments, name=f"gradients-{rank}", daemon=True)
            process.start()
            theirs.close()  # only the follower holds this end now, so its death closes the pipe
            self._followers.append((process, ours))
        try:
            self._answers()  # they have begun
            _join_group(0, self._size, meeting, self._device)
            self._load()
        except BaseException:
            self.close()
            raise

    @property
    def shards(self) -> ShardGroup | None:
        """The processes among which models are divided: none, each holds them."""
        return None

    def close(self) -> None:
        """End the followers."""
        for _, pipe in self._followers:
            pipe.close()  # a follower ends when it reads from the closed pipe
        for process, _ in self._followers:
            process.join(_EXIT_SECONDS)
            if process.is_alive():  # it waits for a tensor, or computes what nobody needs any more
                process.kill()
                process.join()
        self._followers = []
        if dist.is_initialized():
            dist.destroy_process_group()
        shutil.rmtree(self._folder, ignore_errors=True)

    def token_budget(self, batch_tokens: int, tokens: int) -> int:
        """As `GradientPool.token_budget`: small enough that every process gets a micro-batch."""
        return min(batch_tokens, max(1, -(-tokens // self._size)))

    def accumulate(
        self, policy: PolicyGradient, batches: Sequence[MicroBatch], total: float, temperature: float, stats: StepStats
    ) -> float:
        """As `GradientPool.accumulate`. Raises `RunFailed` where a follower failed or died."""
        own, _ = self._hand_out(policy, batches, total, temperature)
        with self._death_explained():
            loss = _accumulate(policy, own, total, temperature, stats)
        for follower_loss, follower_stats in self._answers():
            loss += follower_loss
            stats.merge(follower_stats)
        if policy.policies.divided:  # each has the sum for its part of the weights
            return loss
        parameters = policy.policies.trainable(policy.role)
        summed = _gradients(parameters)
        with self._death_explained():
            dist.reduce(summed, 0)
        for parameter, gradient in zip(parameters, _split(summed, parameters), strict=True):
            parameter.grad = gradient
        return loss

    def logps(
        self, policy: PolicyGradient, batches: Sequence[MicroBatch], temperature: float
    ) -> list[tuple[MicroBatch, list[Tensor]]]:
        """As `GradientPool.logps`. Raises `RunFailed` where a follower failed or died."""
        own, others = self._hand_out(policy, batches, None, temperature)
        with self._death_explained():
            computed = list(zip(own.batches, _logps(policy, own, temperature), strict=True))
        for part, lines in zip(others, self._answers(), strict=True):
            here = [[line.to(self._device) for line in rows] for rows in lines]
            computed += zip(part.batches, here, strict=True)
        return computed

    def optimizer(self, policies: RolePolicies, role: str, config: TrainingConfig) -> RoleOptimizer:
        """As `GradientPool.optimizer`: this process alone makes the steps."""
        return local_optimizer(policies, role, config)

    def _load(self) -> None:
        """Let the followers load their models, all at once."""
        self._tell(None)
        self._answers()

    def _parts(self, batches: Sequence[MicroBatch]) -> list[_Part]:
        """The batches of each process."""
        return [_Part(part) for part in balanced(batches, self._size)]

    def _hand_out(
        self, policy: PolicyGradient, batches: Sequence[MicroBatch], total: float | None, temperature: float
    ) -> tuple[_Part, list[_Part]]:
        """Send the followers their part of the batches, and the parameters; the leader's part, and the followers'."""
        own, *others = self._parts(batches)
        for (_, pipe), part in zip(self._followers, others, strict=True):
            task = _Task(policy.role, policy.config, part, total, temperature)
            with self._death_explained():
                pipe.send_bytes(_packed(task))
        if not policy.policies.divided:
            with self._death_explained():
                dist.broadcast(_flat(policy.policies.trainable(policy.role)), 0)
        return own, others

    def _tell(self, message: object) -> None:
        """Send all followers the same."""
        packed = _packed(message)
        for _, pipe in self._followers:
            with self._death_explained():
                pipe.send_bytes(packed)

    def _answers(self) -> list[Any]:
        """One from each follower, in their order. Raises `RunFailed` where one failed or died."""
        answers: dict[int, Any] = {}
        while len(answers) < len(self._followers):
            pending = {pipe: rank for rank, (_, pipe) in enumerate(self._followers) if rank not in answers}
            for pipe in wait(list(pending)):
                assert isinstance(pipe, Connection)
                with self._death_explained():
                    failed, answer = _unpacked(pipe.recv_bytes(), self._device)
                if failed:
                    raise RunFailed(f"process {pending[pipe] + 1} of training.data_parallel failed: {answer}")
                answers[pending[pipe]] = answer
        return [answers[rank] for rank in range(len(self._followers))]

    @contextmanager
    def _death_explained(self) -> Iterator[None]:
        """Turn a failed exchange with a follower that has died into a `RunFailed` that says so."""
        try:
            yield
        except (EOFError, OSError, RuntimeError) as error:
            for rank, (process, pipe) in enumerate(self._followers, start=1):
                process.join(0.5)
                reason = None if process.exitcode is None else _last_failure(pipe, self._device)
                if reason is not None:
                    raise RunFailed(f"process {rank} of training.data_parallel failed: {reason}") from error
                if process.exitcode is not None:
                    raise RunFailed(
                        f"process {rank} of training.data_parallel = {self._size} died ({_how(process.exitcode)}): "
                        "look at what it printed, free memory or lower training.data_parallel, and resume the run"
                    ) from error
            raise


class ShardedGradients(DataParallelGradients):
    """`DataParallelGradients` of models that are divided among the processes (`training.sharding = "fsdp"`)."""

    leads = True

    @property
    def shards(self) -> ShardGroup | None:
        """The processes among which models are divided: this one and its followers."""
        return self

    def together(self, method: str, *arguments: object) -> AbstractContextManager[None]:
        """As `ShardGroup.together`. Raises `RunFailed` where a follower failed or died."""
        return self.call("policies", "", method, *arguments)

    @contextmanager
    def call(self, target: str, role: str, method: str, *arguments: object) -> Iterator[None]:
        """Let the followers call a method of their policies, or of the role's optimizer, for the time of a block."""
        self._tell(_Call(target, role, method, arguments))
        with self._death_explained():
            yield

    def optimizer(self, policies: RolePolicies, role: str, config: TrainingConfig) -> RoleOptimizer:
        """As `GradientPool.optimizer`: where whole models are trained, every process makes the step of its part."""
        local = local_optimizer(policies, role, config)
        if not policies.divided:
            return local
        self._tell(_NewOptimizer(role, config))
        return _ShardedOptimizer(self, role, local)

    def _load(self) -> None:
        """Let the followers load their models one after another, so that the machine holds one whole copy at a time."""
        for _, pipe in self._followers:
            with self._death_explained():
                pipe.send_bytes(_packed(None))
                failed, reason = _unpacked(pipe.recv_bytes(), self._device)
            if failed:
                raise RunFailed(f"a process of training.data_parallel failed: {reason}")

    def _parts(self, batches: Sequence[MicroBatch]) -> list[_Part]:
        return [_Part(*part) for part in rounds(batches, self._size)]


class _ShardedOptimizer:
    """A `RoleOptimizer` of which each process has a part: the followers do what this one does."""

    def __init__(self, pool: ShardedGradients, role: str, local: LocalOptimizer) -> None:
        self._pool = pool
        self._role = role
        self._local = local

    def clip(self, most: float) -> float:
        """As `RoleOptimizer.clip`."""
        with self._pool.call("optimizer", self._role, "clip", most):
            return self._local.clip(most)

    def step(self, lr: float) -> None:
        """As `RoleOptimizer.step`."""
        with self._pool.call("optimizer", self._role, "step", lr):
            self._local.step(lr)

    def zero_grad(self) -> None:
        """As `RoleOptimizer.zero_grad`."""
        with self._pool.call("optimizer", self._role, "zero_grad"):
            self._local.zero_grad()

    def state(self) -> tuple[dict[str, Tensor], dict[str, float]]:
        """As `RoleOptimizer.state`, gathered on the CPU."""
        with self._pool.call("optimizer", self._role, "gather"):
            return self._local.state()

    def restore(self, tensors: Mapping[str, Tensor], numbers: Mapping[str, float]) -> None:
        """As `RoleOptimizer.restore`."""
        with self._pool.call("optimizer", self._role, "restore", without_content(tensors), numbers):
            self._local.restore(tensors, numbers)


class _Following:
    """The group as a follower sees it (`ShardGroup`)."""

    leads = False

    def together(self, method: str, *arguments: object) -> AbstractContextManager[None]:
        """As `ShardGroup.together`: the leader alone tells others what to do."""
        return nullcontext()


@contextmanager
def gradient_pool(
    base: Path, training: TrainingConfig, roles: Sequence[str], start: Path | None = None
) -> Iterator[GradientPool]:
    """Who computes the gradients of policies over `base` and `start`, for the time of a block: this process alone, or
    `training.data_parallel` processes. Raises as `DataParallelGradients`."""
    if training.data_parallel == 1:
        yield LocalGradients()
        return
    made = ShardedGradients if training.sharding == "fsdp" else DataParallelGradients
    pool = made(base, training, roles, start)
    try:
        yield pool
    finally:
        pool.close()


def balanced(batches: Sequence[MicroBatch], size: int) -> list[list[MicroBatch]]:
    """Divide the batches into `size` parts of about equally many padded tokens.

    The largest batch goes first, each one to the part with the fewest tokens so far.
    """
    parts: list[list[MicroBatch]] = [[] for _ in range(size)]
    loads = [0] * size
    for batch in sorted(batches, key=_padded, reverse=True):
        least = loads.index(min(loads))
        parts[least].append(batch)
        loads[least] += _padded(batch)
    return parts


def rounds(batches: Sequence[MicroBatch], size: int) -> list[tuple[list[MicroBatch], MicroBatch | None]]:
    """Divide the batches into `size` parts of equally many, those of a round of about equally many padded tokens.

    The parts that have none in the last round get the smallest batch beside their own, to compute without effect.
    """
    ordered = sorted(batches, key=_padded, reverse=True)
    most = -(-len(ordered) // size)
    parts = [ordered[rank::size] for rank in range(size)]
    return [(part, ordered[-1] if len(part) < most else None) for part in parts]


def _padded(batch: MicroBatch) -> int:
    return len(batch) * max(row.length for row in batch)


def _follow(
    rank: int,
    meeting: str,
    base: Path,
    start: Path | None,
    training: TrainingConfig,
    roles: tuple[str, ...],
    threads: int,
    pipe: Connection,
) -> None:
    """The main function of a follower, until the leader's end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the leader, and that ends this process
    torch.set_num_threads(threads)
    try:
        hardware = hardware_of(training, rank)
        if training.sharding == "fsdp":
            hardware = replace(hardware, shards=_Following())
        device = torch.device(hardware.device)
        pipe.send_bytes(_packed((False, None)))
        _join_group(rank, training.data_parallel, meeting, device)
        pipe.recv_bytes()  # it is this process's turn to load
        policies, _ = role_policies(base, training, roles=roles, hardware=hardware, start=start)
        pipe.send_bytes(_packed((False, None)))
        optimizers: dict[str, LocalOptimizer] = {}
        while True:
            message = _unpacked(pipe.recv_bytes(), device)
            match message:
                case _Task():
                    _work(policies, message, pipe)
                case _NewOptimizer():
                    optimizers[message.role] = local_optimizer(policies, message.role, message.config)
                case _Call():
                    target = policies if message.target == "policies" else optimizers[message.role]
                    getattr(target, message.method)(*message.arguments)
    except EOFError:  # the leader is finished
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, the leader reports it and ends the run
        _report_failure(pipe, f"{type(error).__name__}: {error}")
        sys.exit(1)


def _work(policies: RolePolicies, task: _Task, pipe: Connection) -> None:
    """Do a task and answer."""
    parameters = policies.trainable(task.role)
    if not policies.divided:
        flat = _flat(parameters)
        dist.broadcast(flat, 0)
        with torch.no_grad():
            for parameter, value in zip(parameters, _split(flat, parameters), strict=True):
                parameter.copy_(value)
                parameter.grad = None
    policy = PolicyGradient(policies, task.role, task.config)
    if task.total is None:
        pipe.send_bytes(_packed((False, _logps(policy, task.part, task.temperature))))
        return
    stats = StepStats(task.config.importance_cap)
    loss = _accumulate(policy, task.part, task.total, task.temperature, stats)
    if policies.divided:
        pipe.send_bytes(_packed((False, (loss, stats))))
        return
    # The leader reads the answer before it reduces, so it never waits for the tensors of a process that failed.
    gradient = _gradients(parameters)
    pipe.send_bytes(_packed((False, (loss, stats))))
    dist.reduce(gradient, 0)


def _accumulate(policy: PolicyGradient, part: _Part, total: float, temperature: float, stats: StepStats) -> float:
    """As `PolicyGradient.accumulate` for the part of one process, with as many passes as the others make."""
    loss = policy.accumulate(part.batches, total, temperature, stats)
    if part.accompanied is not None:
        policy.accompany(part.accompanied, total, temperature)
    return loss


def _logps(policy: PolicyGradient, part: _Part, temperature: float) -> list[list[Tensor]]:
    """As `PolicyGradient.logps` for the part of one process, with as many passes as the others make."""
    extra = [] if part.accompanied is None else [part.accompanied]
    return policy.logps([*part.batches, *extra], temperature)[: len(part.batches)]


def _last_failure(pipe: Connection, device: torch.device) -> str | None:
    """What a process that has ended said last, if it said why it failed."""
    reason = None
    try:
        while pipe.poll():
            failed, answer = _unpacked(pipe.recv_bytes(), device)
            reason = str(answer) if failed else None
    except (EOFError, OSError):
        pass  # nothing more comes
    return reason


def _report_failure(pipe: Connection, reason: str) -> None:
    try:
        pipe.send_bytes(_packed((True, reason)))
    except OSError:
        print(reason, file=sys.stderr)  # the leader is gone


def _join_group(rank: int, size: int, meeting: str, device: torch.device) -> None:
    """Join the process group of leader and followers through the file `meeting`."""
    backend = "gloo"
    if device.type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(device)
    elif sys.platform == "linux":
        # All processes are on this machine, and a host may not be able to resolve its own name.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.FileStore(meeting, size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_TENSOR_TIMEOUT)


def _flat(parameters: Sequence[nn.Parameter]) -> Tensor:
    """All parameters as one row, (N,)."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])


def _gradients(parameters: Sequence[nn.Parameter]) -> Tensor:
    """All gradients as one row, (N,); 0 where a parameter has none."""
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def _split(flat: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """The inverse of `_flat`: a row (N,) in the parameters' shapes."""
    pieces = flat.split([one.numel() for one in parameters])
    return [piece.view_as(one) for piece, one in zip(pieces, parameters, strict=True)]


def _packed(message: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(message, buffer)
    return buffer.getvalue()


def _unpacked(data: bytes, device: torch.device) -> Any:
    """The inverse of `_packed`, with tensors on `device`. Only for bytes of this run's own processes: it unpickles."""
    return torch.load(io.BytesIO(data), map_location=device, weights_only=False)


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
