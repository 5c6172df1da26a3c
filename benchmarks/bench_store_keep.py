"""Whether a store levels off that many trainings write one after the other, each with `store.keep`, while the oldest
runs are deleted: its size on the disk after each of them, beside what a compaction would leave of it.

Deleted records leave their space in the files until the engine merges them, and their keys for ever. So after each
round the store is compacted if it has grown enough, as `train` and `runs delete` do, here from a smaller size on.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from backend.store import RunRecord, Store
from backend.store.folder_swap import size_of
from backend.store.maintenance.compaction import compact_if_grown, compact_store
from benchmarks.bench_store_write import write_step
from benchmarks.run import Result

ROUNDS, STEPS, KEEP, RUNS_KEPT = 18, 4, 2, 3
LEAST_BYTES = 30_000_000  # of a database that is compacted, so that it happens several times
MOST_GROWTH = 1.25  # of the largest size in the second half of the rounds, in relation to the first half's


def run() -> list[Result]:
    """The rows `store.keep.growth` and `store.keep.size`."""
    sizes: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "s"
        for number in range(ROUNDS):
            with Store.open(folder) as store:
                _train(store, f"run-{number}")
                if number >= RUNS_KEPT:
                    store.delete_run(f"run-{number - RUNS_KEPT}")
            compact_if_grown(folder, lambda *progress: None, LEAST_BYTES)
            sizes.append(size_of(folder / "db") / 1e6)
        compact_store(folder, lambda *progress: None)
        compacted = size_of(folder / "db") / 1e6
    half = ROUNDS // 2
    growth = max(sizes[half:]) / max(sizes[:half])
    written = f"{ROUNDS} runs of {STEPS} steps, {KEEP} kept of each and {RUNS_KEPT} runs"
    return [
        {
            "name": "store.keep.growth",
            "value": growth,
            "unit": f"times; {written}; MB: {', '.join(f'{size:.0f}' for size in sizes)}",
            "against": "the largest size in the first half of the runs",
            "ratio": growth,
            "target": f"<= {MOST_GROWTH}",
            "met": growth <= MOST_GROWTH,
        },
        {
            "name": "store.keep.size",
            "value": max(sizes),
            "unit": f"MB at most; {written}",
            "against": f"{compacted:.1f} MB, compacted",
            "ratio": max(sizes) / compacted,
            "target": "<= 12",
            "met": max(sizes) <= 12 * compacted,
        },
    ]


def _train(store: Store, run: str) -> None:
    """What a training of so many steps writes, and what it deletes of the older ones."""
    store.add_run(RunRecord(run, "train", 1, "hash", 1, {"config": {"store": {"keep": KEEP}}}))
    for step in range(STEPS):
        write_step(store, step, run)
        if step >= KEEP:
            store.drop_trajectories(run, [step - KEEP])
    store.finish_run(run, "finished")
