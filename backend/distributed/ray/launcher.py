"""Starts all processes of a training as actors on a Ray cluster, watches them, and starts again those that die.

driver: this command          keeper: the run's folder, for machines that do not share it
   |  placement group            |  base model, published weights, checkpoints, by the object store
   v                             v
rollout-0 …  trainer-manager …   actors, each the worker or trainer that `serve` runs; records go by the store
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from backend.config.load import config_from_dict
from backend.config.schema import Config, ConfigError
from backend.distributed.heartbeat import COORDINATOR
from backend.distributed.local_launcher import RESTARTS, OnStep, coordinator_step
from backend.distributed.ray.actors import Keeper, Life, Machine, Member, look
from backend.distributed.ray.cluster import LOCAL, cluster, require_alive
from backend.distributed.ray.placement import Capacity, Room, rooms
from backend.distributed.run_files import SERVICES, RunFiles
from backend.store.run_record import code_version
from backend.store.store import Store
from cryptosentinel.agents.registry import roles_of
from simulator.errors import RunFailed, UserError

_log = logging.getLogger(__name__)

OnStart = Callable[[str, int], None]
_LOOK = 0.2  # seconds between two looks at the actors
_ALIVE = 2.0  # seconds between two looks at the cluster
_PLACE = 120.0  # seconds to find room in
_BEGIN = 300.0  # seconds for an actor to begin in: a busy machine takes its time to load libraries
_GRACE = 20.0  # seconds to end in after being asked to
_ASK = 5.0  # seconds for a short answer


def run_ray(
    address: str,
    run: str,
    runs: Path,
    workers: int,
    on_step: OnStep,
    on_start: OnStart | None = None,
    ray_address: str = LOCAL,
) -> None:
    """`run_processes` on the Ray cluster at `ray_address`: the same processes, the same logs, the same end.

    Raises `ConfigError` for a cluster without room for them, `UserError` for one that cannot be used, `RunFailed` for
    an actor that failed, with its last words.
    """
    folder = (runs / run).absolute()
    (folder / SERVICES).mkdir(parents=True, exist_ok=True)
    with Store.open(address) as store, cluster(ray_address):
        config = config_from_dict(store.run(run).config["config"], f"the configuration of run {run}")
        crew = _Crew(config, folder, address, workers)
        try:
            crew.start(on_start)
            _watch(store, run, crew, on_step, on_start)
        finally:
            crew.end()


@dataclass
class _Post:
    """One process: what it does, the room it takes and what its present actor is."""

    life: Life
    room: Room
    bundle: int
    process: int = 0
    actor: Any = None


class _Crew:
    """The actors of a run."""

    def __init__(self, config: Config, folder: Path, where: str, workers: int) -> None:
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group

        self.folder = folder
        self.machines = survey(folder)
        roles = roles_of(config.team.roles)
        nodes = [node for node in ray.nodes() if node["Alive"]]
        capacities = [Capacity(one["Resources"].get("CPU", 0.0), one["Resources"].get("GPU", 0.0)) for one in nodes]
        rollout, trainer = rooms(capacities, config, workers, len(roles))
        common = Life("", where, folder.name, str(folder.parent), str(Path.cwd()), True, workers=workers)
        lives = [replace(common, name=f"rollout-{number}", number=number) for number in range(workers)]
        lives += [replace(common, name=f"trainer-{role}", role=role) for role in roles]
        self.posts = [_Post(one, trainer if one.role else rollout, place) for place, one in enumerate(lives)]
        bundles = [{"CPU": one.room.cpus, **({"GPU": one.room.gpus} if one.room.gpus else {})} for one in self.posts]
        if not all(one.shared for one in self.machines.values()):
            bundles[0][f"node:{_own_address()}"] = 0.001  # the leader writes into the run's folder, which is here
        self.group = placement_group(bundles, strategy="PACK")
        self._release = remove_placement_group
        if not self.group.wait(_PLACE):
            remove_placement_group(self.group)
            raise ConfigError(
                f"the cluster has had no room for {workers} rollout workers and {len(roles)} trainers for "
                f"{_PLACE:.0f} s: they need {_sum(bundles)} together, and free is {_told(ray.available_resources())}"
            )
        here = _here(ray.get_runtime_context().get_node_id())
        base = RunFiles(folder).base(config).absolute()
        self.keeper: Any = (
            ray.remote(Keeper)
            .options(num_cpus=0, max_concurrency=8, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)
            .remote(str(folder), str(base))
        )
        self.running: dict[Any, _Post] = {}

    def start(self, on_start: OnStart | None) -> None:
        """All of them."""
        for post in self.posts:
            post.actor = self._actor(post)
        for post in self.posts:
            self._begin(post, on_start)

    def again(self, post: _Post, on_start: OnStart | None) -> None:
        """A new actor in place of a dead one. Raises `RunFailed`."""
        import ray

        ray.kill(post.actor)  # it may only have been out of reach
        # All that died in this place: the last may not have lived long enough to put its own into the store.
        post.life = replace(post.life, replaces=f"{post.life.replaces},{post.process}")
        post.actor = self._actor(post)
        self._begin(post, on_start)

    def end(self) -> None:
        """Ask all to end, and end those that do not."""
        import ray
        from ray.exceptions import RayError

        try:
            require_alive()  # a minute after it has gone, Ray ends this process
            ray.get(self.keeper.stop.remote(), timeout=_ASK)
            if self.running:
                ray.wait(list(self.running), num_returns=len(self.running), timeout=_GRACE)
            for post in self.posts:
                if post.actor is not None:
                    ray.kill(post.actor)
            ray.kill(self.keeper)
            self._release(self.group)
        except (RayError, RunFailed):
            return  # the cluster is gone, and they with it

    def _actor(self, post: _Post) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place = PlacementGroupSchedulingStrategy(self.group, placement_group_bundle_index=post.bundle)
        options = {"num_cpus": post.room.cpus, "num_gpus": post.room.gpus, "max_restarts": 0}
        return ray.remote(Member).options(**options, scheduling_strategy=place).remote(self.keeper)

    def _begin(self, post: _Post, on_start: OnStart | None) -> None:
        from ray.exceptions import GetTimeoutError, RayActorError

        try:
            post.process, node = _answer(post.actor.hello.remote())
        except GetTimeoutError as error:
            raise RunFailed(f"{post.life.name} did not begin in {_BEGIN:.0f} s") from error
        except RayActorError as error:
            raise RunFailed(f"{post.life.name} did not start: {_cause(error)}") from error
        if node not in self.machines:
            self.machines |= survey(self.folder)
        shared = self.machines[node].shared or post.life.name == COORDINATOR
        post.life = replace(post.life, shared=shared)
        self.running[post.actor.live.remote(post.life)] = post
        if on_start is not None:
            on_start(post.life.name, post.process)


def survey(folder: Path) -> dict[str, Machine]:
    """The machines of the cluster by their id. Raises `UserError` for one that does not have this very program."""
    import ray
    from ray.exceptions import GetTimeoutError, RayError

    marker, token = folder / SERVICES / "ray.token", secrets.token_hex(16)
    marker.write_text(token)
    task = ray.remote(look)
    nodes = {one["NodeID"]: one["NodeManagerHostname"] for one in ray.nodes() if one["Alive"]}
    asked = {
        node: task.options(num_cpus=0, scheduling_strategy=_here(node)).remote(node, str(marker), token)
        for node in nodes
    }
    machines = {}
    try:
        for node, answer in asked.items():
            try:
                found = machines[node] = _answer(answer)
            except GetTimeoutError as error:
                raise UserError(
                    f"machine {nodes[node]} of the Ray cluster has not answered for {_PLACE:.0f} s"
                ) from error
            except RayError as error:
                raise UserError(
                    f"machine {nodes[node]} of the cluster cannot run this program ({_cause(error)}): install it "
                    "on all of them, the same version"
                ) from error
            if found.code != code_version():
                raise UserError(
                    f"machine {found.host} of the Ray cluster has version {found.code} of this program, and here it is "
                    f"{code_version()}: use the same on all of them, and start Ray there again"
                )
    finally:
        marker.unlink(missing_ok=True)
    return machines


def _answer(asked: Any) -> Any:
    """What an actor or task answers. Raises `GetTimeoutError` after `_BEGIN` seconds, `RunFailed` if Ray ends."""
    import ray

    until = time.monotonic() + _BEGIN
    while not ray.wait([asked], timeout=_ALIVE)[0] and time.monotonic() < until:
        require_alive()
    return ray.get(asked, timeout=0)


def _watch(store: Store, run: str, crew: _Crew, on_step: OnStep, on_start: OnStart | None) -> None:
    import ray
    from ray.exceptions import RayActorError, RayError

    restarts, seen, looked = 0, -1, time.monotonic()
    while True:
        for ended in ray.wait(list(crew.running), timeout=_LOOK)[0]:
            post = crew.running.pop(ended)
            name = post.life.name
            try:
                code, words = ray.get(ended)
            except RayActorError as error:
                require_alive()
                if restarts == RESTARTS:
                    raise RunFailed(f"{name} has died once more: {_cause(error)}") from error
                restarts += 1
                _log.warning("%s has died and is started again", name)
                crew.again(post, on_start)
                continue
            except RayError as error:
                raise RunFailed(f"{name} could not be run: {_cause(error)}") from error
            if code == 0 and name == COORDINATOR:
                if (status := store.run(run).status) != "running":
                    raise RunFailed(f"somebody else has ended run {run}: it is {status}")
                return
            raise RunFailed(f"{name} ended with code {code}: {words}")
        if time.monotonic() - looked > _ALIVE:
            require_alive()
            looked = time.monotonic()
        step = coordinator_step(store, run)
        if step is not None and step != seen:
            seen = step
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
    return _told(total)


def _told(resources: dict[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0.0):g} {name}s" for name in ("CPU", "GPU"))
