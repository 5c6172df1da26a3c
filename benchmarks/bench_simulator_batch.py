"""Speed of the vector environment: 256 accounts, one symbol, random policy, observations included, one thread.

Two rows: against gym-trading-env 0.3.5 on the same bars and features, and against the least that a batch can be:
all-in or flat with a fee, without orders, spread, funding, margin, masks and infos. Runs alternate between the three
and their medians are compared; actions are drawn beforehand. gym-trading-env holds one account, and has an interpreter
of its own because its requirements exclude ours.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from benchmarks.run import Result
from simulator.env.observations import prepare
from simulator.env.trading_env import EnvConfig, TradingVectorEnv
from simulator.exchange.costs import Costs
from simulator.market.market import Market
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate

PEERS = Path(".venv-peers/bin/python")  # in the root of the repository
ROOT = Path(__file__).resolve().parents[1]
REPETITIONS = 7
ACCOUNTS = 256
STEPS = 2_000
PEER_STEPS = 2_000  # of its one account
WINDOW = 8
FEE = 0.0005
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

# Run by the peers' interpreter: every line that it reads is a repetition, whose seconds it writes.
PEER = """
import json, sys, time
import numpy as np, pandas as pd
import gymnasium, gym_trading_env
given = json.loads(sys.stdin.readline())
data = np.load(given["path"])
frame = pd.DataFrame({name: data[name] for name in ("open", "high", "low", "close", "volume")},
                     index=pd.to_datetime(data["time"], unit="ms"))
for column in range(data["features"].shape[1]):
    frame[f"feature_{column}"] = data["features"][:, column]
env = gymnasium.make("TradingEnv", df=frame, positions=[0, 1], windows=given["window"], trading_fees=given["fee"],
                     portfolio_initial_value=10_000, initial_position=0, verbose=0).unwrapped
for line in sys.stdin:
    actions = np.random.default_rng(int(line)).integers(0, 2, given["steps"]).tolist()
    env.reset(seed=int(line))
    start = time.perf_counter()
    for action in actions:
        if env.step(action)[3]:
            env.reset()
    print(time.perf_counter() - start, flush=True)
"""


def run() -> list[Result]:
    """The rows `simulator.batch.peer` and `simulator.batch.floor`; values are account-steps per second of ours."""
    peers = ROOT / PEERS
    if not peers.exists():
        sys.exit(f"{PEERS} is missing: the benchmark simulator.batch needs it; `make bench` installs it.")
    market = generate(SyntheticConfig(bars=STEPS + 2, seed=1, symbols=("AAAUSDT",)))
    config = EnvConfig(window=WINDOW, length=STEPS, levels=(0.0, 1.0), costs=Costs(taker_fee=FEE))
    env = TradingVectorEnv(market, ACCOUNTS, config)
    floor = _Floor(market)
    seconds: dict[str, list[float]] = {"ours": [], "floor": [], "peer": []}
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(
        [peers, "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | ONE_THREAD
    ) as peer:  # fmt: skip
        assert peer.stdin is not None
        assert peer.stdout is not None
        path = Path(folder) / "bars.npz"
        bars = {name: getattr(market, name)[:, 0] for name in ("open", "high", "low", "close", "volume")}
        np.savez(path, time=market.open_time, features=prepare(market, 1, 1.0).bars.reshape(len(market), -1), **bars)
        order = {"path": str(path), "window": WINDOW, "fee": FEE, "steps": PEER_STEPS}
        print(json.dumps(order), file=peer.stdin, flush=True)
        for repetition in range(REPETITIONS + 1):
            actions = np.random.default_rng(repetition).integers(0, 2, (STEPS, ACCOUNTS))
            once = {"ours": _ours(env, actions), "floor": floor.seconds(actions)}
            print(repetition, file=peer.stdin, flush=True)
            answer = peer.stdout.readline()
            if not answer:
                raise RuntimeError("simulator.batch: gym-trading-env has stopped; its message is above.")
            if repetition > 0:  # the first run warms up
                for name, value in (once | {"peer": float(answer)}).items():
                    seconds[name].append(value)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    ours = ACCOUNTS * STEPS / median["ours"]
    against = {
        "peer": ("gym-trading-env 0.3.5", PEER_STEPS / median["peer"], 100.0),
        "floor": (f"{ACCOUNTS} accounts, all-in or flat, in numba", ACCOUNTS * STEPS / median["floor"], 0.3),
    }
    return [
        Result(
            name=f"simulator.batch.{name}", value=ours, unit="account-steps/s", against=f"{what}: {speed:,.3g}",
            ratio=ours / speed, target=target, met=ours / speed >= target,
        )
        for name, (what, speed, target) in against.items()
    ]  # fmt: skip


def _ours(env: TradingVectorEnv, actions: NDArray[np.int64]) -> float:
    env.reset(seed=0)
    start = time.perf_counter()
    for chosen in actions:
        env.step(chosen)
    return time.perf_counter() - start


class _Floor:
    """The smallest batch that gives rewards and observations of the same size."""

    def __init__(self, market: Market) -> None:
        features = prepare(market, WINDOW, 1.0)
        self.bars, self.open, self.close = features.bars, market.open[:, 0].copy(), market.close[:, 0].copy()
        self.stride = len(self.bars) // (WINDOW - 1 + len(market))
        self.accounts = np.zeros((ACCOUNTS, 3))

    def seconds(self, actions: NDArray[np.int64]) -> float:
        """What the steps take."""
        self.accounts[:] = 10_000.0, 0.0, 10_000.0
        width = self.stride * WINDOW
        start = time.perf_counter()
        for bar, chosen in enumerate(actions, 1):
            rewards, rows = np.empty(ACCOUNTS), np.empty((ACCOUNTS, width + 8), np.float32)
            begin = bar * self.stride
            _floor(chosen, self.open[bar], self.close[bar], self.accounts, self.bars, begin, width, rewards, rows)
        return time.perf_counter() - start


@njit(error_model="numpy")
def _floor(
    chosen: NDArray[np.int64], first: float, close: float, accounts: NDArray[np.float64], bars: NDArray[np.float32],
    begin: int, width: int, rewards: NDArray[np.float64], rows: NDArray[np.float32],
) -> None:  # fmt: skip
    """One bar: accounts (N, 3) hold cash, quantity and equity."""
    for n in range(len(chosen)):
        cash, quantity, before = accounts[n, 0], accounts[n, 1], accounts[n, 2]
        if chosen[n] == 1 and quantity == 0.0:
            quantity, cash = cash / (first * (1.0 + FEE)), 0.0
        elif chosen[n] == 0 and quantity != 0.0:
            quantity, cash = 0.0, quantity * first * (1.0 - FEE)
        equity = cash + quantity * close
        rewards[n] = math.log(equity / before)
        accounts[n, 0], accounts[n, 1], accounts[n, 2] = cash, quantity, equity
        for k in range(width):
            rows[n, k] = bars[begin + k]
        for k in range(width, width + 8):
            rows[n, k] = quantity * close / equity
