"""Several processes, each with a GPU, that compute one optimizer step together: data parallelism over micro-batches.

One process is the leader: it alone has the optimizer, the curriculum and the store. The followers hold the same base
model and no state of their own. For each update they get the role's parameters (a broadcast) and some of its
micro-batches. Their gradients are summed into the leader's (a reduce). The leader then clips and steps as if it had
computed all gradients itself. The denominators are those of the whole batch (`objective.normalizer`), so the sum of the
gradients is the gradient of the whole batch, and the parameters after a step are those of one process to float
rounding. The processes cannot drift apart, and a rollback or a resume concerns the leader alone.

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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from backend.policies.temporary import temporary_folder
from backend.training.learning.batches import MicroBatch, StepStats
from backend.training.learning.role_trainer import GradientPool, LocalGradients, PolicyGradient, RoleTrainerSettings
from simulator.errors import RunFailed

_TENSOR_TIMEOUT = timedelta(minutes=30)  # for one broadcast or reduce; during rollouts nobody waits for a tensor
_EXIT_SECONDS = 5.0  # that a process has to end by itself before it is killed


@dataclass(frozen=True)
class _Task:
    """What a follower computes for a role: a gradient, or log-probs alone where `total` is None."""

    role: str
    settings: RoleTrainerSettings
    batches: Sequence[MicroBatch]
    total: float | None
    temperature: float


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
            self._answers()  # the models are loaded
            _join_group(0, self._size, meeting, self._device)
        except BaseException:
            self.close()
            raise

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
        loss = policy.accumulate(own, total, temperature, stats)
        for follower_loss, follower_stats in self._answers():
            loss += follower_loss
            stats.merge(follower_stats)
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
        computed = list(zip(own, policy.logps(own, temperature), strict=True))
        for part, lines in zip(others, self._answers(), strict=True):
            here = [[line.to(self._device) for line in rows] for rows in lines]
            computed += zip(part, here, strict=True)
        return computed

    def _hand_out(
        self, policy: PolicyGradient, batches: Sequence[MicroBatch], total: float | None, temperature: float
    ) -> tuple[list[MicroBatch], list[list[MicroBatch]]]:
        """Send the followers their part of the batches, and the parameters; the leader's part, and the followers'."""
        own, *others = balanced(batches, self._size)
        for (_, pipe), part in zip(self._followers, others, strict=True):
            task = _Task(policy.role, policy.settings, part, total, temperature)
            with self._death_explained():
                pipe.send_bytes(_packed(task))
        with self._death_explained():
            dist.broadcast(_flat(policy.policies.trainable(policy.role)), 0)
        return own, others

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
            for rank, (process, _) in enumerate(self._followers, start=1):
                process.join(0.5)
                if process.exitcode is not None:
                    raise RunFailed(
                        f"process {rank} of training.data_parallel = {self._size} died ({_how(process.exitcode)}): "
                        "look at what it printed, free memory or lower training.data_parallel, and resume the run"
                    ) from error
            raise


@contextmanager
def gradient_pool(
    base: Path, training: TrainingConfig, roles: Sequence[str], start: Path | None = None
) -> Iterator[GradientPool]:
    """Who computes the gradients of policies over `base` and `start`, for the time of a block: this process alone, or
    `training.data_parallel` processes. Raises as `DataParallelGradients`."""
    if training.data_parallel == 1:
        yield LocalGradients()
        return
    pool = DataParallelGradients(base, training, roles, start)
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
        policies, _ = role_policies(base, training, roles=roles, hardware=hardware, start=start)
        device = torch.device(hardware.device)
        pipe.send_bytes(_packed((False, None)))
        _join_group(rank, training.data_parallel, meeting, device)
        while True:
            _work(policies, _unpacked(pipe.recv_bytes(), device), pipe)
    except EOFError:  # the leader is finished
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, the leader reports it and ends the run
        _report_failure(pipe, f"{type(error).__name__}: {error}")
        sys.exit(1)


def _work(policies: RolePolicies, task: _Task, pipe: Connection) -> None:
    """Do a task and answer."""
    parameters = policies.trainable(task.role)
    flat = _flat(parameters)
    dist.broadcast(flat, 0)
    with torch.no_grad():
        for parameter, value in zip(parameters, _split(flat, parameters), strict=True):
            parameter.copy_(value)
            parameter.grad = None
    policy = PolicyGradient(policies, task.role, task.settings)
    if task.total is None:
        pipe.send_bytes(_packed((False, policy.logps(task.batches, task.temperature))))
        return
    stats = StepStats(task.settings.importance_cap)
    loss = policy.accumulate(task.batches, task.total, task.temperature, stats)
    # The leader reads the answer before it reduces, so it never waits for the tensors of a process that failed.
    gradient = _gradients(parameters)
    pipe.send_bytes(_packed((False, (loss, stats))))
    dist.reduce(gradient, 0)


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
