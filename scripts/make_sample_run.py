"""Makes the finished run that is shipped beside the sample data: `python -m scripts.make_sample_run`, in the
repository's folder.

It plays the scripted team, EMA cross and a variant of each on the sample, and writes
`data/synthetic/sample-run.jsonl.gz`. Run it again where the records of a backtest get another shape.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from backend.runs.sample_run import make_sample_run


def main() -> None:
    """Make the run and say how large its file is."""
    with tempfile.TemporaryDirectory() as work:
        path, size = make_sample_run(Path(work))
    print(f"{path}: {size:,} bytes")


if __name__ == "__main__":
    main()
