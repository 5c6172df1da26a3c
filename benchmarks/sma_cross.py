"""The rule that engines are compared by: SMA(20) crosses SMA(100), all in or flat, on a year of made-up minute bars.

The bars and the rule are those of `tests/kat/engines`. The averages are exact sums of whole cents, the same numbers for
every engine, so that rounding decides no cross.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.market.market import Market

ROOT = Path(__file__).resolve().parents[1]
PEERS = Path(".venv-peers/bin/python")  # in the root of the repository
MADE_BY = ROOT / "tests" / "kat" / "engines" / "gen_data.py"
FAST, SLOW = 20, 100
CASH = 100_000.0
FEE = 0.001
REPETITIONS = 7
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def year() -> dict[str, NDArray[Any]]:
    """525,600 bars: `ts_ms` (n,), `cents` (n, 4) open, high, low, close, `micro` (n,) volume in millionths."""
    spec = importlib.util.spec_from_file_location("gen_data", MADE_BY)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: dict[str, NDArray[Any]] = module.generate()
    return made


def market_of(bars: dict[str, NDArray[Any]]) -> Market:
    """The bars as a market of the symbol X, without a spread."""
    first, high, low, close = (np.ascontiguousarray(bars["cents"][:, i : i + 1] / 100.0) for i in range(4))
    volume = np.ascontiguousarray(bars["micro"][:, None] / 1e6)
    return Market(("X",), "1m", bars["ts_ms"].copy(), first, high, low, close, volume, np.zeros_like(first))


def mean_of(close: NDArray[np.float64], length: int) -> NDArray[np.float64]:
    """(n,): mean of the last `length` closes in hundredths of a cent, exact where `length` divides 100; NaN before."""
    sums = np.concatenate([[0], np.cumsum(np.rint(close * 100.0).astype(np.int64))])
    mean = np.full(len(close), np.nan)
    mean[length - 1 :] = (sums[length:] - sums[:-length]) * (100 // length)
    return mean


def signals_of(close: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n,): 1 at a cross up, 0 at a cross down, NaN elsewhere; known at the close of their bar."""
    gap = mean_of(close, FAST) - mean_of(close, SLOW)
    signals = np.full(len(close), np.nan)
    signals[1:][(gap[:-1] <= 0.0) & (gap[1:] > 0.0)] = 1.0
    signals[1:][(gap[:-1] >= 0.0) & (gap[1:] < 0.0)] = 0.0
    return signals


class Peer:
    """A process of the peers' interpreter. It reads its instructions as a line of JSON; then each empty line is a
    repetition, which it answers with a line of JSON. Leaving the context ends it."""

    def __init__(self, benchmark: str, program: str, instructions: dict[str, Any]) -> None:
        peers = ROOT / PEERS
        if not peers.exists():
            sys.exit(f"{PEERS} is missing: the benchmark {benchmark} needs it; `make bench` installs it.")
        self.benchmark = benchmark
        self._process = subprocess.Popen(
            [peers, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=os.environ | ONE_THREAD | {"TQDM_DISABLE": "1"},
        )  # fmt: skip
        self._write(json.dumps(instructions))

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def once(self) -> dict[str, float]:
        """What one repetition answers."""
        self._write("")
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.benchmark}: the peer has stopped; its message is above.")
        told: dict[str, float] = json.loads(answer)
        return told

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
