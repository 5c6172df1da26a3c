"""Makes the finished run that is shipped beside the sample data: `python -m scripts.make_sample_run`, in the
repository's folder.

It plays the scripted team, EMA cross and a variant of each on the sample, and writes
`data/synthetic/sample-run.jsonl.gz`. Run it again where the records of a backtest get another shape.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from backend.runs.backtest import plan_backtest, play_backtest
from backend.runs.requests import BacktestRequest
from backend.runs.sample_run import FILE, SAMPLE_RUN
from backend.store.store import Store
from backend.store.transfer import export_run
from simulator.folders import sample_data

_REQUEST = BacktestRequest(
    teams=("scripted", "ema_cross"), variants=("shuffled_days",), start="2021-05-01", end="2021-06-15",
    baselines=("hold", "flat", "sma_cross", "matched_random", "oracle"),
)  # fmt: skip


def main() -> None:
    """Make the run and say how large its file is."""
    path = sample_data() / FILE
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        with Store.open(work / "store") as store:
            play_backtest(plan_backtest(_REQUEST), store, SAMPLE_RUN, work / SAMPLE_RUN)
            export_run(store, SAMPLE_RUN, work / FILE)
        shutil.move(work / FILE, path)  # over the former one, which an export leaves as it is
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
