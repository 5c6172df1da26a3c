"""A training that holds its store, while other programs read it, does what it does alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from backend.builders.market import load_market
from backend.store.records import KINDS, RunRecord
from backend.store.store import Store
from simulator.data.archive import write_market
from tests.backend.distributed.process_threads import begin_run
from tests.backend.store.servers import environment
from tests.small_world import RUN, one_process_trainer, small_market, smaller_config

# What a page and `serve status` ask for, again and again.
READ = """
import sys, time
from backend.store import Store
with Store.open(sys.argv[1], reads_only=True) as store:
    print("open", flush=True)
    while True:
        for run in store.runs():
            steps = [one.step for one in store.metrics(run.run)]
            assert steps == sorted(set(steps))
            for step in steps:
                talks = store.trajectories(run.run, step)
                assert len({(one.query, one.rollout, one.role, one.ordinal) for one in talks}) == len(talks)
        time.sleep(0.05)
"""


def records(store: Store) -> dict[str, list[object]]:
    """All that is stored of the run, by kind; the run itself has a time."""
    return {kind.table: list(store.each(kind, RUN)) for kind in KINDS if kind is not RunRecord}


def test_readers_change_nothing_and_one_that_is_killed_disturbs_nobody(nano: Path, tmp_path: Path) -> None:
    write_market(small_market(), tmp_path / "market")
    config = smaller_config(base_model=str(nano), stage1_max_steps=1, stage2_steps=2, queries_per_step=2)
    data = config.market.model_copy(update={"data": str(tmp_path / "market")})
    config = config.model_copy(update={"market": data})
    market = load_market(config.market, config.costs)
    found: list[dict[str, list[object]]] = []
    for where in ("mem://", str(tmp_path / "store")):
        folder = tmp_path / f"run-{len(found)}"
        folder.mkdir()
        readers: list[subprocess.Popen[str]] = []
        with Store.open(where) as store:
            begin_run(store, config)
            if found:
                command = [sys.executable, "-c", READ, where]
                readers = [
                    subprocess.Popen(
                        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
                    )
                    for _ in range(3)
                ]
                for reader in readers:
                    assert reader.stdout is not None and reader.stdout.readline() == "open\n"
                readers[0].kill()  # in the middle of something
            one_process_trainer(config, market, store, folder, nano).run()
            assert [reader.poll() for reader in readers[1:]] == [None] * len(readers[1:])
            for reader in readers:
                reader.kill()
                _, errors = reader.communicate()
                assert "Traceback" not in errors
            found.append(records(store))
    alone, read = found
    assert {table: len(rows) for table, rows in read.items()} == {table: len(rows) for table, rows in alone.items()}
    for table in ("query", "rollout", "trajectory", "delegated", "reward"):
        assert read[table] == alone[table] and alone[table]
