"""What a store that another process holds does a second: single records by one client and by four, and a step's
writes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time

from backend.store import Store
from benchmarks.bench_store_write import ROUNDS, write_step
from benchmarks.pace import at_least, within
from benchmarks.run import Result

SERVE = "from backend.cli.serve import serve_app; serve_app()"
# Writes single records for some seconds and says how many a second.
CLIENT = """
import sys, time
from backend.store import Store
folder, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
with Store.open(folder) as store:
    print("open", flush=True)
    sys.stdin.readline()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        store.add_metrics(name, count, {"loss": 1.0})
        count += 1
    print(count / (time.perf_counter() - began), flush=True)
"""
CLIENTS = 4
SECONDS = 5.0
TARGET_WRITES = 300.0  # a second, of one client
TARGET_STEP = 1.0  # seconds


def run() -> list[Result]:
    """Writes a second of one client and of four together; median seconds of a training step's writes."""
    with tempfile.TemporaryDirectory() as folder:
        gateway = _started(["-c", SERVE, "store", "--path", folder, "--port", "0"])
        try:
            assert gateway.stdout is not None and "listening" in gateway.stdout.readline()
            one, four = _writes(folder, 1), _writes(folder, CLIENTS)
            with Store.open(folder) as store:
                step = statistics.median(write_step(store, number) for number in range(ROUNDS))
        finally:
            gateway.terminate()
            gateway.communicate()
    together = f"records/s of one client; {four:.0f} of {CLIENTS} together"
    return [
        at_least("store.gateway.writes", one, together, TARGET_WRITES),
        within("store.gateway.step", step, "s a step", TARGET_STEP),
    ]


def _started(arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _writes(folder: str, clients: int) -> float:
    """Records a second that several processes write together, each as fast as it can."""
    processes = [_started(["-c", CLIENT, folder, f"run-{number}", str(SECONDS)]) for number in range(clients)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline().strip() == "open"
    time.sleep(0.2)
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0]) for process in processes)
