"""Several processes, each with a GPU, that compute one optimiser step together: data parallelism over micro-batches.

The process that trains leads: it alone has the optimiser, the curriculum and the store. The others hold the same base
and nothing that lasts. For each update they get the role's parameters (a broadcast) and some of its micro-batches, and
their gradients are summed into the leader's (a reduce), which clips and steps as if it had computed them all. The
denominators are those of the whole batch (`objective.normaliser`), so a sum is what is wanted, and the parameters after
a step are those of one process to float rounding. Nothing can drift apart, and a rollback or a resume concerns the
leader alone.

Tensors go by `torch.distributed`: gloo on CPUs, NCCL between GPUs. Accelerate and DDP would add nothing: they average
where we sum, expect equally many backward passes in each process, and step in each. Tasks and answers go by pipes, in
which the death of a process shows at once.
"""

from __future__ import annotations

import io
import multiprocessing as mp
import os
import signal
import sys
import tempfile
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
from backend.policies.hardware import hardware_of
from backend.policies.role_policies import RolePolicies
from backend.training.learning.batches import MicroBatch, Watch
from backend.training.learning.role_trainer import RoleTrainer, RoleTrainerSettings
from simulator.errors import RunFailed

_PATIENCE = timedelta(minutes=30)  # with a tensor that all have announced; a rollout may take longer, nobody waits then
_GRACE = 5.0  # seconds for a process to end in


@dataclass(frozen=True)
class _Task:
    """What a process is to do for a role: a gradient, or log-probs only where `total` is None."""

    role: str
    settings: RoleTrainerSettings
    batches: Sequence[MicroBatch]
    total: float | None
    temperature: float


class Crew:
    """The leader's side. `close` ends the others, and so does the end of this process."""

    def __init__(self, base: Path, training: TrainingConfig, roles: Sequence[str], start: Path | None = None) -> None:
        """Start `training.data_parallel - 1` processes over the base model in `base` and the weights in `start`.

        Raises `ConfigError` where this machine has fewer GPUs, `RunFailed` where a process does not start.
        """
        self.size = training.data_parallel
        self.device = torch.device(hardware_of(training).device)
        self._folder = tempfile.TemporaryDirectory(prefix="cryptosentinel-crew-")
        meeting = str(Path(self._folder.name) / "meeting")
        context = mp.get_context("spawn")
        self._members: list[tuple[SpawnProcess, Connection]] = []
        for rank in range(1, self.size):
            ours, theirs = context.Pipe()
            arguments = (rank, meeting, base, start, training, tuple(roles), torch.get_num_threads(), theirs)
            process = context.Process(target=_follow, args=arguments, name=f"crew-{rank}", daemon=True)
            process.start()
            theirs.close()  # theirs alone, so that their end shows here
            self._members.append((process, ours))
        try:
            self._answers()  # the models are loaded
            _meet(0, self.size, meeting, self.device)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the other processes."""
        for _, pipe in self._members:
            pipe.close()  # they end when they look
        for process, _ in self._members:
            process.join(_GRACE)
            if process.is_alive():  # it waits for others, or computes what nobody wants
                process.kill()
                process.join()
        self._members = []
        if dist.is_initialized():
            dist.destroy_process_group()
        self._folder.cleanup()

    def budget(self, batch_tokens: int, tokens: int) -> int:
        """Padded tokens of a micro-batch, so that there is one for each process where there are tokens enough."""
        return min(batch_tokens, max(1, -(-tokens // self.size)))

    def gradient(
        self, trainer: RoleTrainer, batches: Sequence[MicroBatch], total: float, temperature: float, watch: Watch
    ) -> float:
        """Add the gradient of all batches to the role's parameters, as `RoleTrainer.accumulate` does; their loss."""
        own, _ = self._hand_out(trainer, batches, total, temperature)
        loss = trainer.accumulate(own, total, temperature, watch)
        for other_loss, other_watch in self._answers():
            loss += other_loss
            watch.join(other_watch)
        parameters = trainer.policies.trainable(trainer.role)
        summed = _gradients(parameters)
        with self._trouble():
            dist.reduce(summed, 0)
        for parameter, gradient in zip(parameters, _split(summed, parameters), strict=True):
            parameter.grad = gradient
        return loss

    def logps(
        self, trainer: RoleTrainer, batches: Sequence[MicroBatch], temperature: float
    ) -> list[tuple[MicroBatch, list[Tensor]]]:
        """Each batch with the log-probs of its rows, as `RoleTrainer.logps_of` has them."""
        own, others = self._hand_out(trainer, batches, None, temperature)
        found = list(zip(own, trainer.logps_of(own, temperature), strict=True))
        for share, lines in zip(others, self._answers(), strict=True):
            here = [[line.to(self.device) for line in rows] for rows in lines]
            found += zip(share, here, strict=True)
        return found

    def _hand_out(
        self, trainer: RoleTrainer, batches: Sequence[MicroBatch], total: float | None, temperature: float
    ) -> tuple[list[MicroBatch], list[list[MicroBatch]]]:
        """Give the others their part of the batches, and the parameters; what is left for this process, and theirs."""
        own, *others = balanced(batches, self.size)
        for (_, pipe), share in zip(self._members, others, strict=True):
            task = _Task(trainer.role, trainer.settings, share, total, temperature)
            with self._trouble():
                pipe.send_bytes(_packed(task))
        with self._trouble():
            dist.broadcast(_flat(trainer.policies.trainable(trainer.role)), 0)
        return own, others

    def _answers(self) -> list[Any]:
        """One from each of the others, in their order. Raises `RunFailed` where one failed or died."""
        found: dict[int, Any] = {}
        while len(found) < len(self._members):
            open_ones = {pipe: rank for rank, (_, pipe) in enumerate(self._members) if rank not in found}
            for pipe in wait(list(open_ones)):
                assert isinstance(pipe, Connection)
                with self._trouble():
                    failed, answer = _unpacked(pipe.recv_bytes(), self.device)
                if failed:
                    raise RunFailed(f"process {open_ones[pipe] + 1} of training.data_parallel failed: {answer}")
                found[open_ones[pipe]] = answer
        return [found[rank] for rank in range(len(self._members))]

    @contextmanager
    def _trouble(self) -> Iterator[None]:
        """Tell of a process that has died, where talking with it failed."""
        try:
            yield
        except (EOFError, OSError, RuntimeError) as error:
            for rank, (process, _) in enumerate(self._members, start=1):
                process.join(0.5)
                if process.exitcode is not None:
                    raise RunFailed(
                        f"process {rank} of training.data_parallel = {self.size} died ({_how(process.exitcode)}): "
                        "look at what it printed, free memory or lower training.data_parallel, and resume the run"
                    ) from error
            raise


@contextmanager
def helped(policies: RolePolicies, base: Path, training: TrainingConfig, start: Path | None) -> Iterator[None]:
    """Let `training.data_parallel - 1` other processes help to train the policies in a block; `base` and `start` are
    what the policies were made of. Raises as `Crew`."""
    if training.data_parallel == 1:
        yield
        return
    policies.crew = Crew(base, training, policies.roles, start)
    try:
        yield
    finally:
        policies.crew.close()
        policies.crew = None


def balanced(batches: Sequence[MicroBatch], size: int) -> list[list[MicroBatch]]:
    """The batches in `size` parts of about equally many tokens: the largest first, each to who has least so far.

    Every batch is in one part; the parts depend on the batches alone.
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
    """What the other processes do, until the leader's end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the leader's to hear
    torch.set_num_threads(threads)
    try:
        from backend.policies.build import role_policies  # which imports most of the program

        hardware = hardware_of(training, rank)
        policies, _ = role_policies(base, training, roles=roles, hardware=hardware, start=start)
        device = torch.device(hardware.device)
        pipe.send_bytes(_packed((False, None)))
        _meet(rank, training.data_parallel, meeting, device)
        while True:
            _work(policies, _unpacked(pipe.recv_bytes(), device), pipe)
    except EOFError:  # the leader has done
        return
    except Exception as error:  # noqa: BLE001 - whatever it is, the leader is to hear of it and to end the run
        _last_words(pipe, f"{type(error).__name__}: {error}")
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
    trainer = RoleTrainer(policies, task.role, task.settings)
    if task.total is None:
        pipe.send_bytes(_packed((False, trainer.logps_of(task.batches, task.temperature))))
        return
    watch = trainer.watch()
    loss = trainer.accumulate(task.batches, task.total, task.temperature, watch)
    # The leader waits for the answer first, so that nobody waits for the tensors of a process that failed.
    gradient = _gradients(parameters)
    pipe.send_bytes(_packed((False, (loss, watch))))
    dist.reduce(gradient, 0)


def _last_words(pipe: Connection, words: str) -> None:
    try:
        pipe.send_bytes(_packed((True, words)))
    except OSError:
        print(words, file=sys.stderr)  # the leader is gone


def _meet(rank: int, size: int, meeting: str, device: torch.device) -> None:
    """Join the group of all processes."""
    backend = "gloo"
    if device.type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(device)
    elif sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # nobody is elsewhere, and a host may not know its own name
    store = dist.FileStore(meeting, size)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_PATIENCE)


def _flat(parameters: Sequence[nn.Parameter]) -> Tensor:
    """All numbers of the parameters, one behind another."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])


def _gradients(parameters: Sequence[nn.Parameter]) -> Tensor:
    """All gradients, one behind another; 0 where there is none."""
    found = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
    return torch.cat([one.reshape(-1) for one in found])


def _split(flat: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """What `_flat` put together, in the parameters' shapes."""
    pieces = flat.split([one.numel() for one in parameters])
    return [piece.view_as(one) for piece, one in zip(pieces, parameters, strict=True)]


def _packed(what: object) -> bytes:
    written = io.BytesIO()
    torch.save(what, written)
    return written.getvalue()


def _unpacked(data: bytes, device: torch.device) -> Any:
    """What `_packed` packed in a process of this run, its tensors on `device`."""
    return torch.load(io.BytesIO(data), map_location=device, weights_only=False)


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
