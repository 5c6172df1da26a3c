"""Starts all processes of a training as actors on a Ray cluster, watches them, and starts again those that die.

driver: this command          file server: the run's folder, for machines that do not share it
   |  placement group            |  base model, published weights, checkpoints, by the object store
   v                             v
rollout-0 …  trainer-manager …   actors, each a worker or trainer as `serve` runs it; records go by the store
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backend.config.schema import Config, ConfigError
from backend.distributed.files.run_files import SERVICES, RunFiles
from backend.distributed.heartbeat import COORDINATOR
from backend.distributed.local_launcher import RESTARTS, OnStep, coordinator_step
from backend.distributed.ray.actors import FileServer, Incarnation, Machine, RayProcess, probe
from backend.distributed.ray.cluster import LOCAL, cluster, require_alive
from backend.distributed.ray.placement import Capacity, Resources, allocate
from backend.store.run_record import code_version, stored_config
from backend.store.store import Store
from cryptosentinel.agents.registry import roles_of
from simulator.errors import RunFailed, UserError

_log = logging.getLogger(__name__)

OnStart = Callable[[str, int], None]
_POLL = 0.2  # seconds between two looks at the actors
_ALIVE = 2.0  # seconds between two probes of the cluster
_PLACE = 120.0  # seconds to find resources in
_BEGIN = 300.0  # seconds for an actor to begin in: a busy machine takes its time to load libraries
_GRACE = 20.0  # seconds to end in after being asked to
_ASK = 5.0  # seconds for a short answer
_BEGINNINGS = 5  # of an incarnation, before the run has failed: Ray may put it where a machine has just gone


def run_ray(
    address: str,
    run: str,
    runs: Path,
    workers: int,
    on_step: OnStep,
    on_start: OnStart | None = None,
    ray_address: str = LOCAL,
    approved: str = "",
    more_workers: int = 0,
) -> None:
    """`run_processes` on the Ray cluster at `ray_address`: the same processes, the same logs, the same end.

    So many `more_workers` join whenever the cluster has room for one: Ray sees that they wait, and its autoscaler gets
    machines for them. One whose machine is gone waits anew.

    Raises `ConfigError` for a cluster without resources for them, `UserError` for one that cannot be used, `RunFailed`
    for an actor that failed, with its last message.
    """
    folder = (runs / run).absolute()
    (folder / SERVICES).mkdir(parents=True, exist_ok=True)
    with Store.open(address) as store, cluster(ray_address):
        config, _ = stored_config(store.run(run), approved=approved)
        processes = RayProcesses(config, folder, address, workers, approved, more_workers)
        try:
            processes.start(on_start)
            _watch(store, run, processes, on_step, on_start)
        finally:
            processes.end()


@dataclass(frozen=True)
class _Process:
    """One process: what it does, the resources it takes, and the place of these in the placement group; one without a
    place waits for room. `pid` and `actor` are of its present incarnation."""

    incarnation: Incarnation
    resources: Resources
    bundle: int | None
    pid: int = 0
    actor: Any = None

    @property
    def name(self) -> str:
        return self.incarnation.name

    def bundle_resources(self) -> dict[str, float]:
        """As a placement group takes them."""
        gpus = {"GPU": self.resources.gpus} if self.resources.gpus else {}
        return {"CPU": self.resources.cpus, **gpus}


class RayProcesses:
    """The processes of a run as actors."""

    def __init__(
        self, config: Config, folder: Path, where: str, workers: int, approved: str = "", more_workers: int = 0
    ) -> None:
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group

        self._folder = folder
        self._machines = survey(folder)
        planned = _planned_processes(config, folder, where, workers, approved, more_workers)
        placed = [process for process in planned if process.bundle is not None]
        bundles = [process.bundle_resources() for process in placed]
        if not all(machine.shared for machine in self._machines.values()):
            bundles[0][f"node:{_own_address()}"] = 0.001  # the coordinator writes into the run's folder, which is here
        self._group = placement_group(bundles, strategy="PACK")
        self._release = remove_placement_group
        if not self._group.wait(_PLACE):
            remove_placement_group(self._group)
            raise ConfigError(
                f"the cluster has had no room for {workers} rollout workers and {len(placed) - workers} trainers for "
                f"{_PLACE:.0f} s: they need {_sum(bundles)} together, and free is "
                f"{_describe(ray.available_resources())}"
            )
        here = _here(ray.get_runtime_context().get_node_id())
        base = RunFiles(folder).base(config).absolute()
        self._file_server: Any = (
            ray.remote(FileServer)
            .options(num_cpus=0, max_concurrency=8, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)
            .remote(str(folder), str(base))
        )
        self._processes = {process.name: process for process in planned}
        self._running: dict[Any, str] = {}  # the name of each process by what its actor will return
        self._waiting: dict[Any, str] = {}  # of each process that waits for room, by what its actor will say first

    def start(self, on_start: OnStart | None) -> None:
        """Start all of them."""
        for name, process in list(self._processes.items()):
            self._processes[name] = self._with_actor(process)
        for name in self._processes:
            self._begin(name, on_start)

    def join(self, on_start: OnStart | None) -> list[tuple[str, Exception]]:
        """Let those begin that waited for room and have got it; those whose machine has gone again, with the error."""
        import ray
        from ray.exceptions import RayActorError

        died: list[tuple[str, Exception]] = []
        for answer in ray.wait(list(self._waiting), timeout=0)[0] if self._waiting else ():
            name = self._waiting.pop(answer)
            try:
                pid, node = ray.get(answer)
                self._run(name, pid, node, on_start)
            except RayActorError as error:
                died.append((name, error))
        return died

    def ended(self, timeout: float) -> list[tuple[str, Any]]:
        """The processes that have ended, by name, with what `ray.get` takes for the result of each; waits up to
        `timeout` seconds for one."""
        import ray

        return [(self._running.pop(result), result) for result in ray.wait(list(self._running), timeout=timeout)[0]]

    def restart(self, name: str, on_start: OnStart | None) -> None:
        """Start a new incarnation of a process that has died, several times where Ray does not know yet that the
        machine it chooses has gone too. Raises `RunFailed`."""
        import ray
        from ray.exceptions import RayActorError

        process = self._processes[name]
        # All former ones: the last may have died before it could put its own id into the store.
        incarnation = replace(process.incarnation, replaces=f"{process.incarnation.replaces},{process.pid}")
        for beginning in range(1, _BEGINNINGS + 1):
            ray.kill(process.actor)  # it may only have been out of reach
            process = self._with_actor(replace(process, incarnation=incarnation))
            self._processes[name] = process
            try:
                self._begin(name, on_start)
                return
            except RunFailed as error:
                if beginning == _BEGINNINGS or not isinstance(error.__cause__, RayActorError):
                    raise
            require_alive()

    def end(self) -> None:
        """Ask all to end, and end those that do not."""
        import ray
        from ray.exceptions import RayError

        try:
            require_alive()  # a minute after it has gone, Ray ends this process
            ray.get(self._file_server.stop.remote(), timeout=_ASK)
            if self._running:
                ray.wait(list(self._running), num_returns=len(self._running), timeout=_GRACE)
            for process in self._processes.values():
                if process.actor is not None:
                    ray.kill(process.actor)
            ray.kill(self._file_server)
            self._release(self._group)
        except (RayError, RunFailed):
            return  # the cluster is gone, and they with it

    def _with_actor(self, process: _Process) -> _Process:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        options: dict[str, Any] = {"num_cpus": process.resources.cpus, "num_gpus": process.resources.gpus}
        if process.bundle is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=process.bundle
            )
        actor = ray.remote(RayProcess).options(**options, max_restarts=0).remote(self._file_server)
        return replace(process, actor=actor)

    def _begin(self, name: str, on_start: OnStart | None) -> None:
        """Let the actor of a process begin its work; of one that waits for room, once it has got it (`join`)."""
        from ray.exceptions import GetTimeoutError, RayActorError

        process = self._processes[name]
        if process.bundle is None:
            self._waiting[process.actor.identify.remote()] = name
            return
        try:
            pid, node = _answer(process.actor.identify.remote())
        except GetTimeoutError as error:
            raise RunFailed(f"{name} did not begin in {_BEGIN:.0f} s") from error
        except RayActorError as error:
            raise RunFailed(f"{name} did not start: {_cause(error)}") from error
        self._run(name, pid, node, on_start)

    def _run(self, name: str, pid: int, node: str, on_start: OnStart | None) -> None:
        """Let the process do its work, which is `pid` on the machine `node`."""
        process = self._processes[name]
        if node not in self._machines:
            self._machines |= survey(self._folder)
        machine = self._machines.get(node)  # None: it is gone already, and the process with it
        shared = name == COORDINATOR or (machine is not None and machine.shared)
        process = replace(process, pid=pid, incarnation=replace(process.incarnation, shared=shared))
        self._processes[name] = process
        self._running[process.actor.run.remote(process.incarnation)] = name
        if on_start is not None:
            on_start(name, pid)


def _planned_processes(
    config: Config, folder: Path, where: str, workers: int, approved: str, more_workers: int
) -> list[_Process]:
    """The processes of the run in `folder`, with as much of the cluster as each gets."""
    import ray

    roles = roles_of(config.team.roles)
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    capacities = [Capacity(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in nodes]
    rollout, trainer = allocate(capacities, config, workers, len(roles))
    common = Incarnation("", where, folder.name, str(folder.parent), str(Path.cwd()), True, approved=approved)
    incarnations = [replace(common, name=f"rollout-{number}", number=number) for number in range(workers)]
    incarnations += [replace(common, name=f"trainer-{role}", role=role) for role in roles]
    planned = [_Process(one, trainer if one.role else rollout, place) for place, one in enumerate(incarnations)]
    for number in range(workers, workers + more_workers):
        planned.append(_Process(replace(common, name=f"rollout-{number}", number=number), rollout, None))
    return planned


def survey(folder: Path) -> dict[str, Machine]:
    """The machines of the cluster by their id, but for those that go meanwhile. Raises `UserError` for one that does
    not have this very program."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    marker, token = folder / SERVICES / "ray.token", secrets.token_hex(16)
    marker.write_text(token)
    task = ray.remote(probe)
    nodes = _alive_nodes()
    asked = {
        node: task.options(num_cpus=0, scheduling_strategy=_here(node)).remote(node, str(marker), token)
        for node in nodes
    }
    machines = {}
    try:
        for node, answer in asked.items():
            try:
                machine = machines[node] = _answer(answer)
            except GetTimeoutError as error:
                raise UserError(
                    f"machine {nodes[node]} of the Ray cluster has not answered for {_PLACE:.0f} s"
                ) from error
            except RayError as error:
                if node not in _alive_nodes():
                    continue  # it was counted as alive until now
                raise UserError(
                    f"machine {nodes[node]} of the cluster cannot run this program ({_cause(error)}): install it "
                    "on all of them, the same version"
                ) from error
            if machine.code != code_version():
                raise UserError(
                    f"machine {machine.host} of the Ray cluster has version {machine.code} of this program, and here "
                    f"it is {code_version()}: use the same on all of them, and start Ray there again"
                )
    finally:
        marker.unlink(missing_ok=True)
    return machines


def _alive_nodes() -> dict[str, str]:
    """The host of each machine that the cluster believes to be there, by its id."""
    import ray

    return {one["NodeID"]: one["NodeManagerHostname"] for one in ray.nodes() if one["Alive"]}


def _answer(asked: Any) -> Any:
    """What an actor or task answers. Raises `GetTimeoutError` after `_BEGIN` seconds, `RunFailed` if Ray ends."""
    import ray

    until = time.monotonic() + _BEGIN
    while not ray.wait([asked], timeout=_ALIVE)[0] and time.monotonic() < until:
        require_alive()
    return ray.get(asked, timeout=0)


def _watch(store: Store, run: str, processes: RayProcesses, on_step: OnStep, on_start: OnStart | None) -> None:
    import ray
    from ray.exceptions import RayActorError, RayError

    restarts, last_step, last_check = 0, -1, time.monotonic()
    while True:
        died = processes.join(on_start)
        for name, result in processes.ended(_POLL):
            try:
                code, message = ray.get(result)
            except RayActorError as error:
                died.append((name, error))
                continue
            except RayError as error:
                raise RunFailed(f"{name} could not be run: {_cause(error)}") from error
            if code == 0 and name == COORDINATOR:
                if (status := store.run(run).status) != "running":
                    raise RunFailed(f"somebody else has ended run {run}: it is {status}")
                return
            raise RunFailed(f"{name} ended with code {code}: {message}")
        for name, death in died:
            require_alive()
            if restarts == RESTARTS:
                raise RunFailed(f"{name} has died once more: {_cause(death)}") from death
            restarts += 1
            _log.warning("%s has died and is started again", name)
            processes.restart(name, on_start)
        if time.monotonic() - last_check > _ALIVE:
            require_alive()
            last_check = time.monotonic()
        step = coordinator_step(store, run)
        if step is not None and step != last_step:
            last_step = step
            on_step(step)


def _here(node: str) -> Any:
    """On that machine and no other."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node, soft=False)


def _own_address() -> str:
    import ray

    own = ray.get_runtime_context().get_node_id()
    return next(str(one["NodeManagerAddress"]) for one in ray.nodes() if one["NodeID"] == own)


def _cause(error: BaseException) -> str:
    lines = [line for line in str(getattr(error, "cause", None) or error).strip().splitlines() if line.strip()]
    return lines[-1].strip()[:400] if lines else type(error).__name__


def _sum(bundles: list[dict[str, float]]) -> str:
    total: dict[str, float] = {}
    for bundle in bundles:
        for name, amount in bundle.items():
            total[name] = total.get(name, 0.0) + amount
    return _describe(total)


def _describe(resources: dict[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0.0):g} {name}s" for name in ("CPU", "GPU"))
