"""The wheel alone: what is in it, and that it works in a folder whose own modules have the names of our layers."""

import ast
import importlib.util
import json
import os
import socket
import subprocess
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.wheels import LAYERS, ROOT, build_wheel, install_wheel

HOME = "cryptosentinel/"
# What a folder may hold in which somebody works: modules with the names of our layers, and a strategy with them.
OWN_MODULES = {
    "backend.py": "EXPOSURE = 0.5\n",
    "ui.py": "raise RuntimeError('nobody asked for this module')\n",
    "simulator/__init__.py": "from simulator.rules import side\n",
    "simulator/rules.py": "def side(day):\n    return 1 if day % 2 else -1\n",
    "mine.py": """
import backend
import cryptosentinel as cs
from simulator import side

class EveryOtherDay:
    name = "every_other_day"

    def decide(self, view, account):
        exposure = side(view.now // 86_400_000) * backend.EXPOSURE / len(view.symbols)
        return [order for coin in view.symbols for order in cs.orders_for_target(view, account, coin, exposure)]
""",
}


def in_namespace(source: str, root: Path) -> str:
    """What `setup.py` makes of a module while the wheel is built."""
    spec = importlib.util.spec_from_file_location("layout_of_the_wheel", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written: str = module.in_namespace(source, root)
    return written


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("source") / "copy", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel."""
    folder = tmp_path_factory.mktemp("installed") / "an environment"
    packages = install_wheel(wheel, folder)
    assert {path.name.partition("-")[0] for path in packages.iterdir() if path.suffix != ".pth"} == {"cryptosentinel"}
    return folder


@pytest.fixture
def others(tmp_path: Path) -> Path:
    """A folder with a space in its name and with OWN_MODULES in it."""
    folder = tmp_path / "my own folder"
    for name, text in OWN_MODULES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An empty folder with a space in its name."""
    folder = tmp_path / "an empty folder"
    folder.mkdir()
    return folder


def variables() -> dict[str, str]:
    """Without the repository on the path."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "TERM": "dumb", "COLUMNS": "200"
    }  # fmt: skip


def run(installed: Path, folder: Path, *arguments: str, code: int = 0) -> str:
    command = [str(installed / "bin" / "cryptosentinel"), *arguments]
    done = subprocess.run(command, cwd=folder, env=variables(), capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_it_holds_what_the_program_reads_and_one_package_at_the_top(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    moved = {
        "backend/config/presets/": "configs/",
        "simulator/data/sample/": "data/synthetic/",
        "backend/models/sample_team/": "data/sample_team/",
    }
    inside = {name.removeprefix(HOME) for name in names} | names
    inside |= {place + name.removeprefix(HOME + part) for part, place in moved.items() for name in names}
    wanted = {
        path.relative_to(ROOT).as_posix()
        for folder in (*LAYERS, "configs", "data/synthetic", "data/sample_team")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted - inside == set()
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"cryptosentinel"}


@pytest.mark.slow
def test_no_module_of_it_imports_what_it_does_not_have(installed: Path) -> None:
    """Nor names in a string, as for `python -m`, a module that lies elsewhere in the wheel."""
    moved = ("backend", "simulator", "ui")
    [packages] = installed.glob("lib/python*/site-packages")
    modules = sorted(packages.rglob("*.py"))
    inside = {".".join(path.relative_to(packages / HOME).with_suffix("").parts) for path in modules}
    assert {"backend.cli.main", "simulator.env.trading_env"} <= inside
    left = []
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named: list[str] = []
            if isinstance(node, ast.ImportFrom):
                named = [node.module or ""]
            elif isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = [place for place in [node.value.partition(":")[0]] if place in inside]
            left += [(path.name, name) for name in named if name.partition(".")[0] in moved]
    assert left == []


@pytest.mark.slow
def test_it_works_in_a_folder_with_modules_of_these_names(installed: Path, others: Path) -> None:
    assert "Begin here" in run(installed, others, "--help")
    assert "presets are demo" in run(installed, others, "demo", "--config", "nothing", code=2)
    assert {path.name for path in others.iterdir()} == {"backend.py", "ui.py", "simulator", "mine.py"}
    asked = (
        "import json, sys, backend, simulator, cryptosentinel.backend.config.load as load; print(json.dumps("
        "[backend.__file__, simulator.__file__, load.__file__]))"
    )
    command = [str(installed / "bin" / "python"), "-c", asked]
    done = subprocess.run(command, cwd=others, env=variables(), capture_output=True, text=True, check=True)
    backend, simulator, load = (Path(name) for name in json.loads(done.stdout))
    assert {backend, simulator} == {others / "backend.py", others / "simulator" / "__init__.py"}
    assert load.is_relative_to(installed), "the repository was imported"


@pytest.mark.parametrize(
    ("source", "written"),
    [
        ("from backend.cli import main\n", "from cryptosentinel.backend.cli import main\n"),
        (
            "if x:\n    from simulator import errors  # ü\n",
            "if x:\n    from cryptosentinel.simulator import errors  # ü\n",
        ),
        (
            "import simulator.errors as e, ui.app as a\n",
            "import cryptosentinel.simulator.errors as e, cryptosentinel.ui.app as a\n",
        ),
        ("run('ü', 'backend.cli')\n", "run('ü', 'cryptosentinel.backend.cli')\n"),
        (
            'place = "simulator.env.trading_env:TradingEnv"\n',
            'place = "cryptosentinel.simulator.env.trading_env:TradingEnv"\n',
        ),
    ],
)
def test_what_names_a_moved_package_is_written_anew(source: str, written: str) -> None:
    assert in_namespace(source, ROOT) == written
    assert in_namespace(written, ROOT) == written


@pytest.mark.parametrize(
    "source",
    [
        "from backends import x\n",
        "from . import ui\n",
        "x = 'backend'\n",
        "x = 'simulator.nothing'\n",
        "x = 'see backend.cli'\n",
    ],
)
def test_all_else_stays(source: str) -> None:
    assert in_namespace(source, ROOT) == source


def test_an_import_that_binds_a_name_at_the_top_is_refused() -> None:
    with pytest.raises(ValueError, match="line 1: write `import simulator"):
        in_namespace("import simulator.errors\n", ROOT)


@pytest.mark.slow
def test_ones_own_strategy_uses_ones_own_modules_of_these_names(installed: Path, others: Path) -> None:
    said = run(
        installed, others, "backtest", "--team", "mine:EveryOtherDay", "--start", "2021-06-01", "--baselines", "hold"
    )
    assert "mine:EveryOtherDay: no look-ahead found" in said


@pytest.mark.slow
def test_the_quick_demo_runs(installed: Path, empty: Path) -> None:
    said = run(installed, empty, "demo", "--config", "quick")
    assert "report: runs/" in said and "a decision of the trained team earns" in " ".join(said.split())
    facts = json.loads((empty / "runs" / "demo" / "report.json").read_text(encoding="utf-8"))
    assert facts["held_out_value"] and (empty / "runs" / "demo" / "adapters").is_dir()


@pytest.fixture
def page(installed: Path, empty: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(installed / "bin" / "python"), "-m", "cryptosentinel", "ui", "--port", str(port)]
    headless = {**variables(), "STREAMLIT_SERVER_HEADLESS": "true"}
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
