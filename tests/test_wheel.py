"""The wheel alone: what is in it, and that it works in an empty folder where the repository is not to be found."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAYERS = ("backend", "cryptosentinel", "simulator", "ui")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: a build leaves its folders where it works."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    kept_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in (*LAYERS, "configs", "data"):
        shutil.copytree(ROOT / folder, source / folder, ignore=kept_out)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--wheel-dir", str(out), str(source)], check=True)
    [built] = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the wheel was installed into."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An empty folder with a space in its name."""
    folder = tmp_path / "an empty folder"
    folder.mkdir()
    return folder


def environment(installed: Path) -> dict[str, str]:
    """Where the installed wheel comes before everything, the repository is not on the path."""
    return {**os.environ, "PYTHONPATH": str(installed), "TERM": "dumb", "COLUMNS": "200"}


def run(installed: Path, folder: Path, *arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "backend.cli", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment(installed), capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_it_holds_what_the_program_reads_and_nothing_else_at_the_top(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    inside = {name.replace("backend/config/presets/", "configs/") for name in names}
    inside |= {name.replace("backend/runs/sample/", "data/synthetic/") for name in names}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for folder in (*LAYERS, "configs", "data/synthetic")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted - inside == set()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == set(LAYERS)


def test_it_works_in_an_empty_folder(installed: Path, empty: Path) -> None:
    assert "Begin here" in run(installed, empty, "--help")
    assert "presets are demo" in run(installed, empty, "demo", "--config", "nothing", code=2)
    assert list(empty.iterdir()) == []
    place = "import backend.config.load as load; print(load.__file__)"
    said = subprocess.run(
        [sys.executable, "-c", place], cwd=empty, env=environment(installed), capture_output=True, text=True
    ).stdout
    assert Path(said.strip()).is_relative_to(installed), "the repository was imported"


@pytest.mark.slow
def test_a_strategy_is_tested_on_the_sample(installed: Path, empty: Path) -> None:
    said = run(installed, empty, "backtest", "--team", "ema_cross", "--start", "2021-06-01", "--baselines", "hold")
    assert "ema_cross" in said and "hold" in said
    assert [path.name for path in empty.iterdir()] == ["runs"]
    assert "backtest-" in run(installed, empty, "runs")
    assert len(list(empty.glob("runs/backtest-*/report.html"))) == 1


@pytest.mark.slow
def test_the_quick_demo_runs(installed: Path, empty: Path) -> None:
    assert "report: runs/" in run(installed, empty, "demo", "--config", "quick")


@pytest.fixture
def page(installed: Path, empty: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "backend.cli", "ui", "--port", str(port)]
    headless = {**environment(installed), "STREAMLIT_SERVER_HEADLESS": "true"}
    process = subprocess.Popen(command, cwd=empty, env=headless, stdout=subprocess.DEVNULL)
    yield f"http://localhost:{port}"
    process.terminate()
    process.wait(30)


@pytest.mark.slow
def test_the_page_answers(page: str) -> None:
    until = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(f"{page}/_stcore/health", timeout=5) as answer:
                assert answer.read() == b"ok"
                return
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.2)
