"""Every command of README.md and the pages, in a new environment with the built wheel, in a folder that was empty."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from backend.jobs.queue import JobQueue
from tests.documented_steps import ELSEWHERE, FIRST, NAMES, OTHER_PROGRAMS, PARTS, STEPS, Step, group_of
from tests.shown_commands import PRESENT, ROOT, shell_lines
from tests.wheels import build_wheel

LISTS = ("base", "train", "llm", "ui", "paper")
PLACE = re.compile(r"\{(\w+)(?::(\d+))?\}")
PATIENCE = 900.0  # seconds that a command may take on a busy machine
MY_MODULE = '''
import numpy as np
import cryptosentinel as cs


class Mine:
    """Long while the mean of `fast` closes is above that of `slow`."""

    name = "mine"

    def __init__(self, fast: int = 5, slow: int = 20) -> None:
        self.fast, self.slow = fast, slow
        self.bars_of_history = slow

    def decide(self, view, account):
        orders = []
        for symbol in view.symbols:
            close = view.bars(symbol, self.slow).close
            if len(close) == self.slow and not np.isnan(close).any():
                long = close[-self.fast :].mean() > close.mean()
                orders += cs.orders_for_target(view, account, symbol, (1.0 if long else 0.0) / len(view.symbols))
        return orders


MyStrategy = Mine
'''
EXPERIMENT = """
question = "Does a test of seconds run?"
config = "quick"
seeds = "1-2"

[test]
measure = "total_return"
against = "flat"

[windows]
count = 4
decisions = 4

[[arms]]
name = "flat"
team = "flat"

[[arms]]
name = "ema_cross"
team = "ema_cross"
"""


def lines_of_pages() -> dict[str, str]:
    """Each line for a shell that a page shows, and one page that shows it."""
    return {line: path.name for path in PRESENT for line in shell_lines(path)}


def test_each_command_of_the_pages_is_run_or_has_a_reason() -> None:
    lines = lines_of_pages()
    assert len(lines) > 150
    missing = {line: page for line, page in lines.items() if group_of(line) is None}
    assert missing == {}, "put these into tests/documented_steps.py: to be run, or with the reason why not"


def test_no_command_stands_twice_nor_after_it_left_the_pages() -> None:
    listed = [*(step.shown for step in STEPS), *NAMES, *(line for lines in ELSEWHERE.values() for line in lines)]
    assert [line for line, times in Counter(listed).items() if times > 1] == []
    assert set(listed) - set(lines_of_pages()) == set()


def test_what_is_put_in_stands_in_the_command() -> None:
    """Else a step would be run as it is shown, and nobody would see that it is not what was meant."""
    assert [step.shown for step in STEPS if not any(name in step.shown for name in step.put or [""])] == []
    assert all(reason for reason in [*ELSEWHERE, *OTHER_PROGRAMS.values()])


class Shell:
    """A folder and the program of an environment in it."""

    def __init__(self, environment: Path, folder: Path, patience: float = PATIENCE) -> None:
        self._bin = environment / "bin"
        self.folder = folder
        self._patience = patience
        self._last: dict[str, str] = {}
        self._lasting: list[subprocess.Popen[str]] = []
        self._logs = 0
        path = os.pathsep.join([str(self._bin), os.environ["PATH"]])
        outside = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        self._variables = {
            **outside, "PATH": path, "TERM": "dumb", "COLUMNS": "200", "STREAMLIT_SERVER_HEADLESS": "true",
            "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "XDG_STATE_HOME": str(folder.parent / "state"),
        }  # fmt: skip

    def carry_out(self, step: Step) -> str | None:
        """Run a step. Returns what was wrong with how it ended; None for nothing."""
        command = self._command(step)
        if step.lasts:
            return self._begin(command)
        try:
            done = subprocess.run(
                command, cwd=self.folder, env=self._variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True, stdin=subprocess.DEVNULL, timeout=self._patience,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"{shlex.join(command)}: it did not end"
        if step.keep:
            self._last[step.keep] = self._newest("backtest")
        if done.returncode == step.code and step.says in done.stdout and "Traceback" not in done.stdout:
            return None
        return (
            f"{shlex.join(command)}: code {done.returncode}, not {step.code} with {step.says!r}: {done.stdout[-2000:]}"
        )

    def _command(self, step: Step) -> list[str]:
        text = re.sub(r"[\[\]]", "", step.shown) if re.search(r" \[--", step.shown) else step.shown
        for shown, given in step.put.items():
            text = text.replace(shown, given)
        return [PLACE.sub(self._place, word) for word in shlex.split(f"{text} {step.more}")]

    def _place(self, match: re.Match[str]) -> str:
        """What `{NAME}` or `{NAME:COUNT}` stands for."""
        name, count = match[1], int(match[2] or 1)
        if name == "bars":
            return str(self.folder / "recorded bars")
        if name.endswith("port"):
            return self._last.setdefault(name, str(_free_port()))
        if name == "job":
            return self._newest("jobs/*")
        if name in self._last:
            return self._last[name]
        return self._newest(name, count)

    def _newest(self, kind: str, count: int = 1) -> str:
        """The id of the newest run of a kind, or of the one so many before; with "jobs/*" of the newest job."""
        runs = sorted((self.folder / "runs").glob(f"{kind}-*"), key=lambda path: path.stat().st_mtime_ns)
        return runs[-count].name

    def _begin(self, command: list[str]) -> str | None:
        self._logs += 1
        log = self.folder / f"log {self._logs}"
        with log.open("w") as out:
            process = subprocess.Popen(
                command, cwd=self.folder, env=self._variables, stdout=out, stderr=subprocess.STDOUT, text=True,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self._lasting.append(process)
        until = time.monotonic() + self._patience
        while not log.read_text().strip() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
        time.sleep(3.0)  # a refusal would come right after the first line
        if process.poll():
            return f"{shlex.join(command)}: ended with {process.returncode}: {log.read_text()[-2000:]}"
        return None

    def close(self) -> None:
        """End what lasts."""
        while self._lasting:
            process = self._lasting.pop()
            process.send_signal(signal.SIGINT)
            process.wait(60)
        self._end_jobs()

    def _end_jobs(self) -> None:
        """Else they would write into the environment, which goes next: Python leaves what it compiles there."""
        if not (self.folder / "runs" / "jobs").is_dir():
            return
        queue = JobQueue(self.folder / "runs")
        for job in queue.active():
            queue.cancel(job.name)
        until = time.monotonic() + self._patience
        while queue.active():
            assert time.monotonic() < until, f"jobs that do not end: {queue.active()}"
            time.sleep(0.5)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def recorded_bars(folder: Path, hours: int = 11_000) -> None:
    """A folder of hourly bars of two coins from 2023-01-01 on, with funding and headlines: a drawn walk."""
    folder.mkdir()
    draws = np.random.default_rng(3)
    times = pd.date_range("2023-01-01", periods=hours, freq="1h", tz="UTC")
    for symbol, price in (("BTCUSDT", 30_000.0), ("ETHUSDT", 2_000.0)):
        close = price * np.exp(np.cumsum(draws.normal(0.0, 0.006, hours)))
        start = np.concatenate([[price], close[:-1]])
        wick = 1.0 + np.abs(draws.normal(0.0, 0.002, hours))
        bars = pd.DataFrame({"timestamp": times, "open": start, "high": np.maximum(start, close) * wick,
                             "low": np.minimum(start, close) / wick, "close": close,
                             "volume": draws.uniform(50.0, 100.0, hours)})  # fmt: skip
        bars.to_parquet(folder / f"{symbol}-1h.parquet")
        funding = pd.DataFrame({"timestamp": times[::8], "funding_rate": 1e-5})
        funding.to_parquet(folder / f"{symbol}-funding.parquet")
    days = times[::24]
    known = days + pd.Timedelta("1h")
    news = pd.DataFrame({"time": days, "known_at": known, "symbol": "BTCUSDT", "text": "A calm day."})
    news.to_parquet(folder / "news.parquet")


def files_of_other_programs(folder: Path) -> None:
    """The files of bars that the commands of docs/guides/data.md import, of the first days of the recorded bars."""
    bars = pd.read_parquet(folder / "recorded bars" / "BTCUSDT-1h.parquet").head(48)
    seconds = (bars["timestamp"].astype("int64") // 10 ** (9 if bars["timestamp"].dt.unit == "ns" else 6)).to_numpy()
    columns = ["open", "high", "low", "close", "volume"]
    plain = bars.assign(time=seconds * 1000)[["time", *columns]]
    plain.to_csv(folder / "BTCUSDT-1h.csv", index=False)
    vision = folder / "vision" / "spot" / "monthly" / "klines" / "BTCUSDT" / "1h"
    vision.mkdir(parents=True)
    rows = plain.assign(
        end=plain["time"] + 3_600_000 - 1, quote=plain["volume"] * plain["close"], trades=9, a=1.0, b=1.0, c=0
    )
    rows.to_csv(vision / "BTCUSDT-1h-2023-01.csv", index=False, header=False)
    exchange = folder / "user_data" / "data" / "binance"
    exchange.mkdir(parents=True)
    bars.rename(columns={"timestamp": "date"}).to_feather(exchange / "BTC_USDT-1h.feather")
    written = (
        "https://www.CryptoDataDownload.com\nUnix,Date,Symbol,Open,High,Low,Close,Volume BTC,Volume USDT,tradecount\n"
    )
    rows_of_bars: list[Any] = [*bars.itertuples()]
    for time_, row in reversed([*zip(seconds, rows_of_bars, strict=True)]):
        prices = ",".join(str(getattr(row, name)) for name in columns)
        written += f"{time_ * 1000},{row.timestamp:%Y-%m-%d %H:%M:%S},BTCUSDT,{prices},{row.volume * row.close},9\n"
    (folder / "Binance_BTCUSDT_1h.csv").write_text(written)
    days = pd.read_parquet(folder / "recorded bars" / "BTCUSDT-1h.parquet").iloc[: 60 * 24 : 24]
    quoted = ["Price,Close,High,Low,Open,Volume", "Ticker" + ",BTC-USD" * 5, "Date,,,,,"]
    quoted += [f"{day.timestamp:%Y-%m-%d},{day.close},{day.high},{day.low},{day.open},{day.volume}"
               for day in days.itertuples()]  # fmt: skip
    (folder / "BTC-USD.csv").write_text("\n".join(quoted) + "\n")
    berlin = bars["timestamp"].dt.tz_convert("Europe/Berlin")
    table = [";".join(["Date", "Open", "High", "Low", "Close", "Vol"])]
    for clock, row in zip(berlin, rows_of_bars, strict=True):
        numbers = [f"{getattr(row, name):.6f}".replace(".", ",") for name in columns]
        table.append(";".join([f"{clock:%d.%m.%Y %H:%M}", *numbers]))
    (folder / "prices.csv").write_text("\n".join(table) + "\n")


def own_files(folder: Path) -> None:
    """What the pages take a reader to have: bars, a strategy of the tutorial and another, an experiment, settings."""
    recorded_bars(folder / "recorded bars")
    files_of_other_programs(folder)
    tutorial = (ROOT / "docs" / "start" / "tutorial.md").read_text(encoding="utf-8")
    strategy = re.search(r"^```python\n(# my_strategy\.py.*?)^```", tutorial, re.MULTILINE | re.DOTALL)
    assert strategy is not None
    (folder / "my_strategy.py").write_text(strategy[1], encoding="utf-8")
    (folder / "my_module.py").write_text(MY_MODULE, encoding="utf-8")
    (folder / "experiments").mkdir()
    (folder / "experiments" / "mine.toml").write_text(EXPERIMENT, encoding="utf-8")
    shutil.copy(ROOT / "configs" / "quick.toml", folder / "my.toml")


@contextmanager
def new_environment(folder: Path) -> Iterator[Path]:
    """A new virtual environment with the built wheel and what the extras need, as locked."""
    environment = folder / "new environment"
    subprocess.run([sys.executable, "scripts/install.py", *LISTS, "--new", str(environment)], cwd=ROOT, check=True)
    wheel = build_wheel(folder / "source", folder / "built")
    pip = [str(environment / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", str(wheel)], check=True)
    subprocess.run([*pip, "check"], check=True)
    yield environment
    shutil.rmtree(environment)  # 2 GB


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """The program of the wheel in a folder that was empty, after the steps that every part needs."""
    work = tmp_path_factory.mktemp("wheel")
    with new_environment(work) as environment:
        folder = work / "a folder of mine"
        folder.mkdir()
        shell = Shell(environment, folder)
        assert shell.carry_out(Step("cryptosentinel --help")) is None
        assert list(folder.iterdir()) == []
        own_files(folder)
        assert [problem for step in FIRST if (problem := shell.carry_out(step))] == []
        yield shell


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_the_commands_of_the_pages_run_from_the_wheel(shell: Shell, part: str) -> None:
    """All of it takes most of an hour; `-k PART` one part."""
    try:
        assert [problem for step in PARTS[part] if (problem := shell.carry_out(step))] == []
    finally:
        shell.close()


@pytest.mark.slow
def test_names_of_commands_are_known_to_the_wheel(shell: Shell) -> None:
    helps = (Step(name.partition(" --")[0], more="--help") for name in NAMES)
    assert [problem for step in helps if (problem := shell.carry_out(step))] == []
