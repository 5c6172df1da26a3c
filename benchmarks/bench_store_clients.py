"""Two hundred light clients on one store, as many as a large training has processes: each signs in, waits for the
others, and writes one record after another. No client is refused, no record is lost, and the gateway's memory is
bounded. What a training does besides, claims and heartbeats, is not measured here."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from backend.store.records import MetricRecord, RunRecord
from backend.store.store import Store
from benchmarks.run import Result

CLIENTS, WRITES = 200, 20
PROCESSES = 4  # among which the clients are divided, each a connection of its own
MOST_MEMORY = 1_000  # MB of the process that holds the store
_ACCOUNT = {"CRYPTOSENTINEL_STORE_USER": "bench", "CRYPTOSENTINEL_STORE_PASSWORD": "of two hundred clients"}
_CLIENTS = """
import sys, threading
from backend.store.store import Store
url, first, clients, writes = sys.argv[1], *map(int, sys.argv[2:])
failures = []
together = threading.Barrier(clients)
def client(number):
    try:
        with Store.open(url) as store:
            together.wait()
            for write in range(writes):
                store.add_metrics("bench", number * writes + write, {"value": float(write)})
    except Exception as error:
        failures.append(f"{type(error).__name__}: {error}")
        together.abort()
threads = [threading.Thread(target=client, args=(first + number,)) for number in range(clients)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit("; ".join(failures[:3]) or 0)
"""


def run() -> list[Result]:
    """The row `store.clients`; the value is the most memory of the gateway in MB."""
    with tempfile.TemporaryDirectory() as folder:
        return [_measured(Path(folder))]


def _measured(folder: Path) -> Result:
    environment = os.environ | _ACCOUNT
    command = [sys.executable, "-m", "backend.cli", "serve", "store", "--path", str(folder / "store"), "--port", "0"]
    gateway = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        assert gateway.stdout is not None
        url = next(word.rstrip(",;") for word in gateway.stdout.readline().split() if word.startswith("ws://"))
        with Store.open(folder / "store") as store:
            store.add_run(RunRecord("bench", "train", 1, "none", 1, {}))
            each, began = CLIENTS // PROCESSES, time.perf_counter()
            writers = [
                subprocess.Popen(
                    [sys.executable, "-c", _CLIENTS, url, str(first), str(each), str(WRITES)], env=environment
                )
                for first in range(0, CLIENTS, each)
            ]
            refused = sum(writer.wait() != 0 for writer in writers)
            seconds = time.perf_counter() - began
            lost = CLIENTS * WRITES - store.count(MetricRecord, "bench")
        peak = _peak_memory(gateway.pid)
    finally:
        gateway.terminate()
        gateway.wait()
    return {
        "name": "store.clients",
        "value": peak,
        "unit": "MB",
        "against": f"{MOST_MEMORY} MB; {CLIENTS} clients, {CLIENTS * WRITES} records in {seconds:.0f} s: {lost} lost, "
        f"{refused} of {PROCESSES} groups of clients with a refusal",
        "ratio": MOST_MEMORY / peak,
        "target": 1.0,
        "met": peak <= MOST_MEMORY and not lost and not refused,
    }


def _peak_memory(process: int) -> float:
    """The most resident memory that a process has had, in MB."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
