"""A run whose processes are started one by one, with the commands of docs/deployment.md, on two networks."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch

from backend.builders.market import load_market
from backend.runs.requests import TrainRequest
from backend.store.store import Store
from cryptosentinel.agents.registry import ROLES
from simulator.data.archive import write_market
from tests.backend.distributed.process_threads import begin_run, last_parameters
from tests.backend.store.servers import CREDENTIALS, environment
from tests.network_namespaces import Machines, NoNamespaces, two_machines
from tests.small_world import one_process_trainer, small_market

PASSWORD = {**CREDENTIALS, "CRYPTOSENTINEL_STORE_PASSWORD": "correct horse battery"}
STEPS = 3
PORT = 8765
OVERRIDES = (
    "team.horizon_bars=6", "training.stage1_steps=1", "training.stage1_max_steps=1",
    f"training.stage2_steps={STEPS - 1}", "training.queries_per_step=4", "training.rollouts_per_query=2",
    "training.scenario_paths=2", "training.lora_rank=2", "training.validation_every=1",
    "training.validation_queries=2", "training.gate_format=0", "training.rollback_format=0",
    "training.warmup_steps=1", "training.shards=2", "nano.vocab_size=512", "nano.hidden_size=64", "nano.layers=2",
    "nano.intermediate_size=128", "nano.decisions=100", "nano.steps=60", "nano.batch_tokens=1024", "nano.seed=1",
)  # fmt: skip


@pytest.fixture
def machines() -> Iterator[Machines]:
    with ExitStack() as stack:
        try:
            found = stack.enter_context(two_machines())
        except NoNamespaces as reason:
            pytest.skip(str(reason))
        yield found


class Cluster:
    """Commands of this program in two namespaces, each with a home of its own and folders of its own."""

    def __init__(self, machines: Machines, top: Path) -> None:
        self.machines, self.top = machines, top
        self.address = f"ws://{machines.first_address}:{PORT}"
        self.children: dict[str, subprocess.Popen[bytes]] = {}

    def folder(self, namespace: str) -> Path:
        """The working directory of a machine."""
        return self.top / ("first" if namespace == self.machines.first else "second")

    def start(self, name: str, namespace: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a command by the name `name`, which also names its log."""
        home = self.folder(namespace)
        home.mkdir(exist_ok=True)
        variables = environment(HOME=str(home), OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", **PASSWORD)
        command = self.machines.inside(namespace, [sys.executable, "-m", "backend.cli", *arguments])
        with (self.top / f"{name}.log").open("ab") as log:
            child = subprocess.Popen(command, cwd=home, env=variables, stdout=log, stderr=log)
        self.children[name] = child
        return child

    def log(self, name: str) -> str:
        """What a command has written."""
        return (self.top / f"{name}.log").read_text(errors="replace")

    def wait_for(self, name: str, text: str, seconds: float = 240.0) -> None:
        """Wait until a command has written a text."""
        until = time.monotonic() + seconds
        while text not in self.log(name):
            assert time.monotonic() < until, f"{name} never wrote {text!r}: {self.log(name)[-1500:]}"
            assert self.children[name].poll() is None or text in self.log(name), self.log(name)[-1500:]
            time.sleep(0.1)

    def end(self) -> None:
        """Kill what is left."""
        for child in self.children.values():
            child.send_signal(signal.SIGCONT)
            child.kill()
            child.wait()


@contextmanager
def cluster_with_store(machines: Machines, top: Path) -> Iterator[Cluster]:
    """A cluster whose first machine serves a store."""
    cluster = Cluster(machines, top)
    try:
        arguments = ["serve", "store", "--path", "store", "--host", machines.first_address, "--port", str(PORT)]
        cluster.start("store", machines.first, arguments)
        cluster.wait_for("store", "listening on")
        yield cluster
    finally:
        cluster.end()


def begin_on_first(cluster: Cluster, data: Path) -> tuple[str, str]:
    """Begin a run on the first machine; its id, and the digest by which other machines trust it."""
    overrides = [part for text in (*OVERRIDES, f"market.data={data}") for part in ("--set", text)]
    arguments = ["train", "--begin", "--workers", "2", "--config", "quick", "--store", cluster.address, *overrides]
    assert cluster.start("begin", cluster.machines.first, arguments).wait(240) == 0, cluster.log("begin")
    written = re.sub(r"\s+", " ", cluster.log("begin"))
    [run] = set(re.findall(r"serve lead (\S+)", written))
    [digest] = re.findall(r"--approved ([0-9a-f]{64})", written)
    return run, digest


def assert_equal_to_one_process(cluster: Cluster, run: str, data: Path, nano: Path, folder: Path) -> None:
    config = TrainRequest(config="quick", overrides=(*OVERRIDES, f"market.data={data}")).settings()
    market = load_market(config.market, config.costs)
    folder.mkdir()
    with Store.open("mem://") as store:
        begin_run(store, config)
        one_process_trainer(config, market, store, folder, nano).run()
    places = [path for home in ("first", "second") for path in (cluster.top / home).glob(f"runs/{run}/processes/*")]
    for role in ROLES:
        [place] = [path for path in places if path.name == f"trainer-{role}"]
        mine, theirs = last_parameters(place, role), last_parameters(folder, role)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[name], theirs[name]) for name in mine), f"{role} has become another"


def start_all(cluster: Cluster, run: str, digest: str) -> None:
    """The commands of docs/deployment.md: the leader and two trainers here, the rest on the other machine."""
    first, second, options = cluster.machines.first, cluster.machines.second, ["--store", cluster.address]
    cluster.start(
        "trainer-trader", second, ["serve", "trainer", run, "--role", "trader", *options, "--approved", digest]
    )
    cluster.start("rollout", second, ["serve", "rollout", run, *options, "--approved", digest])
    cluster.start("lead", first, ["serve", "lead", run, *options])
    for role in set(ROLES) - {"trader"}:
        cluster.start(f"trainer-{role}", first, ["serve", "trainer", run, "--role", role, *options])


@pytest.mark.slow
def test_six_processes_on_two_networks_end_where_one_process_does(machines: Machines, tmp_path: Path) -> None:
    """Its base model is made by `train --begin` and travels by the store; the machines share no folder of the run."""
    data = tmp_path / "market"
    write_market(small_market(), data)
    with cluster_with_store(machines, tmp_path) as cluster:
        run, digest = begin_on_first(cluster, data)
        start_all(cluster, run, digest)
        assert cluster.children["lead"].wait(500) == 0, cluster.log("lead")[-3000:]
        for name in ("rollout", *(f"trainer-{role}" for role in ROLES)):
            assert cluster.children[name].wait(60) == 0, cluster.log(name)[-3000:]
        assert (tmp_path / "first" / "runs" / run / "team.json").is_file()
        base = tmp_path / "first" / "runs" / run / "nano"
        assert_equal_to_one_process(cluster, run, data, base, tmp_path / "joint")
        cluster.children["store"].terminate()
        cluster.children["store"].wait(60)
    with Store.open(tmp_path / "first" / "store") as store:
        assert store.run(run).status == "finished"
        workers = {claim for step in range(STEPS) for claim in store.claims(run, step).values()}
        assert len(workers) == 2, "one of the two rolled out nothing"
