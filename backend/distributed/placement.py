"""How much of a cluster each actor takes: shares of CPUs and GPUs that fit, or a refusal in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backend.config.schema import Config, ConfigError

CPU_SHARES = (1.0, 0.5, 0.25)  # a trainer waits while others roll out, so four actors can share a core
GPU_SHARES = (1.0, 0.5, 0.25, 0.125)


@dataclass(frozen=True)
class Capacity:
    """What a machine of the cluster has in all, or what an actor takes of one."""

    cpus: float
    gpus: float


def allocate(machines: Sequence[Capacity], config: Config, workers: int, roles: int) -> tuple[Capacity, Capacity]:
    """The resources of a rollout worker and of a trainer: the largest shares with which all of them fit.

    A worker that starts a vLLM server has a GPU of its own; where GPUs are left, the others have equal shares of them,
    one at most, and else they compute on CPUs. Raises `ConfigError` where they do not fit.
    """
    cpus = _share([one.cpus for one in machines], CPU_SHARES, workers + roles)
    if not cpus:
        raise ConfigError(
            f"{workers} rollout workers and {roles} trainers need {CPU_SHARES[-1]:g} CPUs each, and the cluster's "
            f"machines have {_listed([one.cpus for one in machines])}: lower --workers, or give it more machines"
        )
    left = [one.gpus for one in machines]
    sampling = config.engine.kind != "vllm"  # in the worker's own process
    serving = not sampling and not config.engine.url and sum(left) > 0
    if serving:
        if sum(int(one) for one in left) < workers:
            raise ConfigError(
                f"engine.kind = vllm starts a server with each of the {workers} rollout workers, on a GPU of its own, "
                f"and the cluster's machines have {_listed(left)}: lower --workers, or name a server with engine.url"
            )
        for _ in range(workers):
            left[left.index(max(left))] -= 1.0
    share = _share(left, GPU_SHARES, roles + workers * sampling)
    return Capacity(cpus, share if sampling else 1.0 * serving), Capacity(cpus, share)


def _share(machines: Sequence[float], shares: Sequence[float], processes: int) -> float:
    """The largest of `shares` with which that many processes fit; 0 where none does."""
    return next((share for share in shares if sum(int(one / share) for one in machines) >= processes), 0.0)


def _listed(amounts: Sequence[float]) -> str:
    return ", ".join(f"{one:g}" for one in amounts) or "none"
