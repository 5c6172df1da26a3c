"""What a second rollout worker brings: rollouts a second of two worker processes against one, as `train --launch
processes` starts them: one thread each, around a store that this process holds, every record written.

What is measured is rolling out. The trainers are played by this process: as soon as a step is complete it publishes the
same weights for the next one, so that no optimizer competes for the cores and none is waited for. A step's time is from
one completion to the next: it holds the loading of the weights, generation, scoring, all writes, the wait of the
faster worker for the slower one, and the wait until everybody has noticed. It holds no validation, which is the
leader's alone and has no second worker. Both numbers of workers do the same steps with the same seeds, turn by turn. A
step has 12 shards of 128 rollouts, which whoever is free takes, so that its ends weigh little: of a step of two shards
the heavier one alone took 5 % more than half of the time.

`services.workers.processor` is the processor time of a rollout, of the workers and of the process that holds the store:
what a second worker costs beyond its work. Other programs on the machine blur it little, and the time by the clock a
lot: on cores that do nothing else, two workers are at most twice one divided by this ratio.

`services.workers.machine` is what the machine itself gives: two processes that roll the same shards out and know
nothing of each other, without a store, against one. Its cores share a cache, the way to the memory and their clock, and
those of a virtual machine may be two threads of one core.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import torch

from backend.builders.market import load_market
from backend.config.load import load_config
from backend.config.schema import Config
from backend.policies.build import role_policies
from backend.policies.tensor_files import write_tensors
from backend.store.records import PublishedRecord, RolloutRecord, TrajectoryRecord
from backend.store.run_record import recorded_run
from backend.store.store import Store
from backend.training.start import begin
from benchmarks.run import Result

STEPS = 2  # the first warms up
ROUNDS = 3  # a turn differs from the next by a tenth
TARGET = 1.8
LOOK = 0.02  # seconds between two looks of those who play the trainers
SETTINGS = (
    "training.queries_per_step=192", "training.rollouts_per_query=8", "training.shards=12", "training.stage1_steps=0",
    "training.stage1_max_steps=0", f"training.stage2_steps={STEPS}", "training.validation_every=1000",
    "training.validation_queries=2", "training.scenario_paths=16", "nano.steps=80", "nano.decisions=100",
)  # fmt: skip
_ALONE = """
import sys, tempfile, time
from pathlib import Path
import torch
from backend.builders.market import load_market
from backend.config.load import load_config
from backend.store.records import RunRecord
from backend.store.store import Store
from backend.training.curriculum.curriculum import Curriculum
from backend.training.rl_job import training_parts
from cryptosentinel.scheduler import Throughput
torch.set_num_threads(1)
base, *settings = sys.argv[1:]
config = load_config("quick", settings)
market = load_market(config.market, config.costs)
with tempfile.TemporaryDirectory() as folder, Store.open("mem://") as store:
    store.add_run(RunRecord("bench", "train", 1, market.content_hash, 1, {}))
    parts = training_parts(config, market, store, "bench", Path(folder), Path(base), Path(folder))
    shards = parts.collector.queries(0, Curriculum(config.training).stage(2))[:4]
    parts.collector.roll_out(0, shards[0], Throughput())
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    for shard in shards:
        parts.collector.roll_out(0, shard, Throughput())
    print(time.perf_counter() - began, flush=True)
"""
_SILENT: Callable[[str, int, int], None] = lambda what, done, total: None  # noqa: E731  # of no interest here


def run() -> list[Result]:
    """The row `services.workers`; the value is the rollouts a second of two workers."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rates, processor, digests, machine = _measured()
    finally:
        torch.set_num_threads(threads)
    if len(digests) > 1:
        raise AssertionError("one and two workers left other records of the same steps")
    one, two = (statistics.median(rates[workers]) for workers in (1, 2))
    costs = {workers: 1000.0 * statistics.mean(seconds) for workers, seconds in processor.items()}
    return [
        {
            "name": "services.workers",
            "value": two,
            "unit": "rollouts/s",
            "against": f"one worker, {one:.1f} rollouts/s: same steps and seeds, same records, one thread each",
            "ratio": two / one,
            "target": TARGET,
            "met": two >= TARGET * one,
        },
        {
            "name": "services.workers.processor",
            "value": costs[2],
            "unit": "ms/rollout",
            "against": f"one worker, {costs[1]:.2f} ms of processor time a rollout, in the workers and the store",
            "ratio": costs[2] / costs[1],
            "target": f"<= {2.0 / TARGET:.2f}",
            "met": costs[2] <= 2.0 / TARGET * costs[1],
        },
        {
            "name": "services.workers.machine",
            "value": machine,
            "unit": "times one process",
            "against": "one process that rolls the same shards out, without a store: the most that two can give",
            "ratio": machine,
            "target": f">= {TARGET}: else the row above cannot reach its own",
            "met": machine >= TARGET,
        },
    ]


def _measured() -> tuple[dict[int, list[float]], dict[int, list[float]], set[str], float]:
    """Rollouts a second of each steady step by the number of workers, and processor seconds of a rollout in each turn;
    digests of what was stored; and what two processes without a store give, times one."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    processor: dict[int, list[float]] = {1: [], 2: []}
    digests: set[str] = set()
    with tempfile.TemporaryDirectory() as scratch:
        config = load_config("quick", SETTINGS)
        base = begin(config, load_market(config.market, config.costs), Path(scratch), _SILENT)
        config = load_config("quick", (*SETTINGS, f"training.base_model={base}"))
        for turn in range(ROUNDS):
            for workers in rates:
                folder = Path(scratch) / f"{turn}-{workers}"
                folder.mkdir()
                address = str(folder / "store")
                with Store.open(address) as store:
                    times, seconds = _times(config, store, address, folder, workers)
                    rollouts = config.training.queries_per_step * config.training.rollouts_per_query
                    rates[workers] += [rollouts / (b - a) for a, b in pairwise(times)]
                    processor[workers].append(seconds / rollouts / (STEPS - 1))
                    digests.add(_digest(store))
        machine = 2.0 * max(seconds_alone(base, 1)) / max(seconds_alone(base, 2))
    return rates, processor, digests, machine


def seconds_alone(base: Path, processes: int) -> list[float]:
    """What four shards of a step take each of some processes that begin at once and know nothing of each other."""
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-c", _ALONE, str(base), *SETTINGS, f"training.base_model={base}"]
    children = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | one_thread)
        for _ in range(processes)
    ]
    for child in children:
        assert child.stdout is not None
        if child.stdout.readline().strip() != "ready":
            raise RuntimeError("a process that rolls shards out alone has ended")
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    return [float(child.communicate(timeout=120)[0]) for child in children]


def _times(config: Config, store: Store, address: str, runs: Path, workers: int) -> tuple[list[float], float]:
    """When each step of the run was complete; and processor seconds from the first of these moments to the last."""
    market = load_market(config.market, config.costs)
    (runs / "bench").mkdir()
    weights = _weights(config, runs / "bench")
    times = []
    spent = 0.0
    with (
        recorded_run(store, "bench", "train", 1, market.content_hash, config),
        _workers(address, runs, workers) as (processes, alive),
    ):
        everybody = (os.getpid(), *processes)
        for step in range(STEPS):
            for record in weights:
                store.add_published(record(step))
            while not store.step_complete("bench", step, config.training.shards):
                alive()
                time.sleep(LOOK)
            times.append(time.perf_counter())
            if step == 0:
                spent = -sum(map(processor_seconds, everybody))
        spent += sum(map(processor_seconds, everybody))
    return times, spent


def _weights(config: Config, folder: Path) -> Sequence[Callable[[int], PublishedRecord]]:
    """Of each role the record that publishes its untrained weights for a step."""

    def publishing(role: str) -> Callable[[int], PublishedRecord]:
        path = folder / f"{role}.safetensors"
        write_tensors(path, policies.role_state(role), policies.header(role))
        version, checksum = policies.version(role), hashlib.sha256(path.read_bytes()).hexdigest()
        told = {"metrics": {}, "rolled_back": False}
        return lambda step: PublishedRecord("bench", role, step, version, path.name, checksum, told)

    policies, _ = role_policies(Path(config.training.base_model), config.training)
    return [publishing(role) for role in policies.roles]


@contextmanager
def _workers(address: str, runs: Path, workers: int) -> Iterator[tuple[list[int], Callable[[], None]]]:
    """Worker processes for a block: their ids, and what raises if one of them has ended."""
    one_thread = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    common = ["serve", "rollout", "bench", "--store", address, "--runs", str(runs)]
    logs = [runs / f"rollout-{number}.log" for number in range(workers)]
    children = []
    for number, log in enumerate(logs):
        with log.open("wb") as output:
            command = [sys.executable, "-m", "backend.cli", *common, "--number", str(number)]
            children.append(subprocess.Popen(command, stdout=output, stderr=output, env=os.environ | one_thread))

    def alive() -> None:
        for child, log in zip(children, logs, strict=True):
            if child.poll() is not None:
                raise RuntimeError(f"a worker ended with code {child.returncode}: {log.read_text()[-2000:]}")

    try:
        yield [child.pid for child in children], alive
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait(60)


def processor_seconds(process: int) -> float:
    """Of a process with all its threads, in user and system mode."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _digest(store: Store) -> str:
    """Of all rollouts and conversations."""
    digest = hashlib.sha256()
    for kind in (RolloutRecord, TrajectoryRecord):
        for record in store.each(kind, "bench"):
            digest.update(repr(record).encode())
    return digest.hexdigest()
