"""Plug-ins: what an installed package names by entry points is found, and nobody but the user makes code run."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from backend.builders.engines import load_engine, served_engine
from backend.builders.loaded_team import recording, replayed_team, scripted_team
from backend.builders.plugins import load_plugins, reward_of
from backend.builders.sources import bars_of_source
from backend.builders.strategies import named_strategy
from backend.config import plugins
from backend.config.load import load_config
from backend.config.plugins import PLUGIN_KINDS, PluginKind, plugin, records_of, refuse_own_modules
from backend.config.schema import Config
from backend.jobs import process, queue
from backend.jobs.queue import JobQueue
from cryptosentinel.agents import registry
from cryptosentinel.agents.registry import team_of
from cryptosentinel.agents.role import Tool
from cryptosentinel.protocol.tool_calls import NoArguments
from cryptosentinel.team_settings import TeamConfig
from simulator.errors import UserError

INSTALLED = """
from simulator.strategies import EmaCross

SEEN = []


class Slow(EmaCross):
    name = "slow"

    def __init__(self, fast=30, slow=90):
        super().__init__(fast, slow)
        SEEN.append(self)


def cautious(net_returns, volatility):
    return 0.25


NOTHING = 3
"""
POINTS = """
[cryptosentinel.strategies]
slow_cross = installed_plugin:Slow
nothing = installed_plugin:NOTHING
gone = installed_plugin:Gone

[cryptosentinel.roles]
nobody = installed_plugin:NOTHING

[cryptosentinel.rewards]
cautious = installed_plugin:cautious
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with entry points, as pip installs it."""
    place = tmp_path / "site"
    (place / "installed_plugin-1.0.dist-info").mkdir(parents=True)
    (place / "installed_plugin.py").write_text(INSTALLED)
    (place / "installed_plugin-1.0.dist-info" / "METADATA").write_text("Name: installed-plugin\nVersion: 1.0\n")
    (place / "installed_plugin-1.0.dist-info" / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(place))
    yield place
    sys.modules.pop("installed_plugin", None)


def test_an_installed_strategy_has_a_name_and_takes_arguments(package: Path) -> None:
    strategy = named_strategy("slow_cross")
    assert (strategy.name, type(strategy.make()).__name__) == ("slow_cross", "Slow")
    assert named_strategy("slow_cross:fast=5,slow=20").name == "slow_cross:fast=5,slow=20"
    with pytest.raises(UserError, match="not an argument of it"):
        named_strategy("slow_cross:quick=5")


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (lambda: named_strategy("nothing"), "is a int and makes no strategy"),
        (lambda: named_strategy("gone"), "the installed plug-in 'gone' .* cannot be imported"),
        (lambda: load_plugins(load_config(load_config("quick"), ["team.roles=nobody"])), "is a int and no role"),
    ],
)
def test_what_an_entry_point_names_must_be_of_its_kind(package: Path, load: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load()


def test_what_is_installed_is_named_with_its_package_and_version(package: Path) -> None:
    reward = reward_of(load_config(Config(), ["training.reward=cautious"]).training)
    assert reward is not None and reward(np.zeros(3), 1.0) == 0.25
    [record] = records_of(["cautious", "something else"])
    assert (record["kind"], record["package"], record["version"]) == ("reward", "installed-plugin", "1.0")
    assert record["digest"] == hashlib.sha256((package / "installed_plugin.py").read_bytes()).hexdigest()[:16]


def test_two_packages_with_one_name_are_refused(package: Path) -> None:
    other = package / "other_plugin-2.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Name: other-plugin\nVersion: 2.0\n")
    (other / "entry_points.txt").write_text("[cryptosentinel.rewards]\ncautious = elsewhere:cautious\n")
    with pytest.raises(UserError, match=r"'cautious' in cryptosentinel\.rewards is of several installed packages"):
        reward_of(load_config(Config(), ["training.reward=cautious"]).training)


USERS = """
import cryptosentinel as cs

NUMBER = 3
TOOL = cs.Tool("look", "Looks.", cs.NoArguments, lambda context, arguments: {"seen": 1})
SAME = cs.Tool("look", "Looks.", cs.NoArguments, lambda context, arguments: {})
TAKEN = cs.Tool("get_limits", "Looks.", cs.NoArguments, lambda context, arguments: {})
NO_RUN = cs.Tool("look", "Looks.", cs.NoArguments)
FAILS = cs.Tool("look", "Looks.", cs.NoArguments, lambda context, arguments: {"seen": 1 / 0})
GIVES = cs.Tool("look", "Looks.", cs.NoArguments, lambda context, arguments: 3)


def fails(*anything):
    return 1 / 0


def none(*anything):
    return None


def two(*anything):
    return 2.0


class Half:
    name = "half"

    def generate(self, requests):
        return []


class Short(Half):
    def policy_version(self, role):
        return "1"


def half(settings, codec):
    return Half()


def short(settings, codec):
    return Short()
"""


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of the user's own in the current folder, with mistakes of all kinds."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "users.py").write_text(USERS)
    (tmp_path / "broken.py").write_text("1 / 0\n")
    yield
    sys.modules.pop("users", None)


def _team(tools: str) -> object:
    config = load_config(Config(), [f"team.tools={tools}"])
    load_plugins(config)
    return team_of(config.team.roles, tools=config.team.tools)


def _judged(setting: str) -> object:
    config = load_config(Config(), [f"training.{setting}"])
    reward = reward_of(config.training)
    assert reward is not None
    return reward(np.zeros(2), 1.0)


def _engine(name: str) -> object:
    config = load_config(Config(), [f"engine.kind={name}"])
    return load_engine(config.engine, config.budget).engine.generate([None])  # type: ignore[list-item]  # never looked at


MISTAKES: list[tuple[Callable[[], object], str]] = [
    (lambda: _team("look=users:TOOL"), "no role 'look'"),
    (lambda: _team("users:TOOL"), "write ROLE=module:NAME"),
    (lambda: _team("manager=users:NUMBER"), "users:NUMBER is a int and no tool"),
    (lambda: _team("manager=users:NO_RUN"), "computes nothing"),
    (lambda: _team("manager=users:TOOL,manager=users:SAME"), "manager would have two tools 'look'"),
    (lambda: _team("manager=users:TAKEN"), "manager would have two tools 'get_limits'"),
    (lambda: _judged("reward=users:NUMBER"), "users:NUMBER is a int and no reward"),
    (lambda: _judged("reward=users:fails"), r"the reward users:fails failed: ZeroDivisionError.*users.py, line"),
    (lambda: _judged("reward=users:none"), "the reward users:none gave None: it must give a number"),
    (lambda: _judged("reward=users:two"), "the reward users:two gave 2.0: it must lie between 0 and 1"),
    (lambda: _engine("users:NUMBER"), "no engine"),
    (lambda: _engine("users:half"), "lacks policy_version"),
    (lambda: _engine("users:short"), "gave 0 answers to 1 requests"),
    (lambda: _engine("users:fails"), "the engine users:fails failed: ZeroDivisionError"),
    (lambda: bars_of_source("users:fails", Path("runs")), "the source users:fails failed: ZeroDivisionError"),
    (lambda: bars_of_source("users:two", Path("runs")), "the source users:two gave a float"),
    (lambda: load_config(Config(), ["engine.kind=half"]), "'half' is not a known engine; there are local, vllm"),
]


@pytest.mark.parametrize(("load", "message"), MISTAKES)
def test_each_mistake_is_one_sentence(users: None, load: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        load()
    assert "\n" not in str(raised.value).strip()


@pytest.mark.parametrize("kind", PLUGIN_KINDS, ids=lambda kind: kind.word)
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:NAME", "no module 'nowhere'"),
        ("broken:NAME", "module 'broken' cannot be imported: ZeroDivisionError.*line 1"),
        ("users:missing", "module 'users' has no {word} 'missing'"),
        ("not an attribute:", "is no {word}"),
        ("unknown", "'unknown'"),
    ],
)
def test_what_is_not_there_is_said_the_same_way_of_every_kind(
    users: None, kind: PluginKind, name: str, message: str
) -> None:
    with pytest.raises(UserError, match=message.format(word=kind.word)):
        plugin(kind, name)


def test_a_tool_that_fails_is_named_when_it_is_called(users: None) -> None:
    for name, message in (("FAILS", "ZeroDivisionError.*users.py"), ("GIVES", "gave a int: it must give a dict")):
        config = load_config(Config(), [f"team.tools=trader=users:{name}"])
        load_plugins(config)
        [trader] = [
            one for one in team_of(config.team.roles, tools=config.team.tools)[1].values() if one.key == "trader"
        ]
        run = trader.tool("look").run
        assert run is not None
        with pytest.raises(UserError, match=rf"the tool 'look' \(users:{name}\).*{message}"):
            run(None, NoArguments())  # type: ignore[arg-type]  # never looked at


def test_a_tool_is_of_the_teams_that_name_it_alone(users: None) -> None:
    with_tool = _team("trader=users:TOOL")
    plain = team_of(Config().team.roles)
    assert isinstance(with_tool, tuple)
    trader, same = with_tool[1]["consult_trader"], plain[1]["consult_trader"]
    assert isinstance(trader.tool("look"), Tool) and trader.max_turns == same.max_turns + 1
    assert "look" not in same.argument_types() and plain[0] is registry.MANAGER is with_tool[0]


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the current folder that leaves a file when it is imported; the path of that file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trap.py").write_text("open('was-run', 'w').close()\nROLE = None\n")
    sys.modules.pop("trap", None)
    return tmp_path / "was-run"


def test_a_recording_names_no_tool_that_is_then_imported(tmp_path: Path, trap: Path) -> None:
    tape = tmp_path / "tape.jsonl"
    _, recorder = recording(scripted_team(TeamConfig()), tape)
    recorder.close()
    tape.write_text(tape.read_text().replace('"tools": []', '"tools": ["manager=trap:TOOL"]'))
    assert "trap:TOOL" in tape.read_text()
    with pytest.raises(UserError, match=r"manager=trap:TOOL.*name it yourself"):
        replayed_team(tape)
    assert not trap.exists()


def test_the_users_own_configuration_does(trap: Path) -> None:
    """The opposite: the trap of the test above is one."""
    with pytest.raises(UserError, match="trap:ROLE is a NoneType and no role"):
        load_plugins(load_config(Config(), ["plugins.roles=trap:ROLE"]))
    assert trap.exists()


SAMPLE = Path(__file__).resolve().parents[3] / "data" / "synthetic"
REFUSAL = "the page runs no code that a field names"
NAMES = ("evil:Evil", "data.uploads.evil:Evil", "evil:Evil:fast=1")


@pytest.fixture
def evil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the current folder that leaves a file when it is imported, in a process of the page."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(plugins._REFUSED, "1")
    mark = tmp_path / "was-imported"
    code = f"open({str(mark)!r}, 'w')\nclass Evil:\n    def decide(self, view, account): return []\n"
    (tmp_path / "data" / "uploads").mkdir(parents=True)
    for place in ("evil.py", "data/uploads/evil.py"):
        (tmp_path / place).write_text(code)
    return mark


def config_with(setting: str) -> Config:
    default = Config().training  # what the preset rewards besides is of the shipped scores
    shipped = [f"training.{key}={getattr(default, key)}" for key in ("tail_weight", "advice_weight", "verdict_weight")]
    return load_config("demo", [*shipped, setting])


FIELDS: dict[str, Callable[[str], object]] = {
    **{f"kind {kind.word}": partial(plugin, kind) for kind in PLUGIN_KINDS},
    "strategy": named_strategy,
    "market.source": lambda name: bars_of_source(name, Path("runs")),
    "plugins.roles": lambda name: load_plugins(config_with(f'plugins.roles=["{name}"]')),
    "team.tools": lambda name: load_plugins(config_with(f'team.tools=["market_analyst={name}"]')),
    "training.reward": lambda name: reward_of(config_with(f"training.reward={name}").training),
}


@pytest.mark.parametrize("name", NAMES[:2])
@pytest.mark.parametrize("field", FIELDS)
def test_no_field_imports_a_module(evil: Path, field: str, name: str) -> None:
    with pytest.raises(UserError, match=REFUSAL):
        FIELDS[field](name)
    assert not evil.exists()


def test_a_strategy_with_arguments_is_refused_as_well(evil: Path) -> None:
    with pytest.raises(UserError, match=REFUSAL):
        named_strategy(NAMES[2])
    assert not evil.exists()


@pytest.mark.parametrize("allowed", [True, False])
def test_a_job_has_the_refusal_of_who_asked_for_it(
    evil: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], allowed: bool
) -> None:
    """Whatever its process was started with; and so has the job that resumes it."""
    monkeypatch.setattr(queue, "start_detached", lambda *given: None)
    refuse_own_modules(not allowed)
    jobs = JobQueue(Path("runs"))
    job = jobs.submit(("check", "lookahead", "--team=evil:Evil", f"--data={SAMPLE}"))
    assert job.request.own_modules is allowed
    refuse_own_modules(allowed)  # as its process has it
    monkeypatch.setattr(sys, "argv", ["process"])
    process.run_job(job.path, job.request.command)
    assert evil.exists() is allowed and (allowed or REFUSAL in capsys.readouterr().err)


def test_no_program_that_a_setting_names_is_run(evil: Path, tmp_path: Path) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\ntouch {evil}\n")
    program.chmod(0o700)
    with pytest.raises(UserError, match=REFUSAL):
        served_engine(config_with(f"engine.python={program}").engine, tmp_path)
    assert not evil.exists()
