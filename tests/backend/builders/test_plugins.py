"""Plug-ins: what an installed package names by entry points is found, and nobody but the user makes code run."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from backend.builders.plugins import load_plugins
from backend.builders.strategies import named_strategy
from backend.builders.teams import load_team
from backend.config.load import load_config, override
from backend.config.schema import Config, TeamConfig
from backend.models.manifest import MANIFEST, sample_team
from cryptosentinel.agents import registry
from simulator.errors import UserError

INSTALLED = """
from simulator.strategies import EmaCross

SEEN = []


class Slow(EmaCross):
    name = "slow"

    def __init__(self, fast=30, slow=90):
        super().__init__(fast, slow)
        SEEN.append(self)


NOTHING = 3
"""
POINTS = """
[cryptosentinel.strategies]
slow_cross = installed_plugin:Slow
nothing = installed_plugin:NOTHING
gone = installed_plugin:Gone

[cryptosentinel.roles]
nobody = installed_plugin:NOTHING
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with entry points, as pip installs it."""
    place = tmp_path / "site"
    (place / "installed_plugin-1.0.dist-info").mkdir(parents=True)
    (place / "installed_plugin.py").write_text(INSTALLED)
    (place / "installed_plugin-1.0.dist-info" / "METADATA").write_text("Name: installed-plugin\nVersion: 1.0\n")
    (place / "installed_plugin-1.0.dist-info" / "entry_points.txt").write_text(POINTS)
    monkeypatch.syspath_prepend(str(place))
    yield place
    sys.modules.pop("installed_plugin", None)


def test_an_installed_strategy_has_a_name_and_takes_arguments(plugin: Path) -> None:
    strategy = named_strategy("slow_cross")
    assert (strategy.name, type(strategy.make()).__name__) == ("slow_cross", "Slow")
    assert named_strategy("slow_cross:fast=5,slow=20").name == "slow_cross:fast=5,slow=20"
    with pytest.raises(UserError, match="no argument of it"):
        named_strategy("slow_cross:quick=5")


def test_an_installed_strategy_is_imported_anew_for_the_look_ahead_check(plugin: Path) -> None:
    strategy = named_strategy("slow_cross")
    assert strategy.load is not None
    module = sys.modules["installed_plugin"]
    assert type(strategy.load()()) is not type(strategy.make()), "the two share the state of their module"
    assert sys.modules["installed_plugin"] is module


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (lambda: named_strategy("nothing"), "is a int and makes no strategy"),
        (lambda: named_strategy("gone"), "the installed plug-in 'gone' .* cannot be imported"),
        (lambda: load_plugins(override(load_config("quick"), ["team.roles=nobody"])), "is a int and no role"),
    ],
)
def test_what_an_entry_point_names_must_be_of_its_kind(plugin: Path, load: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load()


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module in the current folder that leaves a file when it is imported; the path of that file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trap.py").write_text("open('was-run', 'w').close()\nROLE = None\n")
    return tmp_path / "was-run"


def test_a_teams_folder_makes_no_module_run(tmp_path: Path, trap: Path) -> None:
    document = json.loads((sample_team() / MANIFEST).read_text())
    document["config"]["plugins"] = {"roles": ["trap:ROLE"]}
    document["config"]["team"]["roles"] += ["theirs"]
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / MANIFEST).write_text(json.dumps({**document, "base": str(sample_team() / "nano")}))
    known = dict(registry.SUB_AGENTS)
    with pytest.raises(UserError):
        load_team(str(tmp_path / "team"), TeamConfig())
    assert not trap.exists() and known == registry.SUB_AGENTS


def test_the_users_own_configuration_does(trap: Path) -> None:
    """The opposite: the trap of the test above is one."""
    with pytest.raises(UserError, match="trap:ROLE is a NoneType and no role"):
        load_plugins(override(Config(), ["plugins.roles=trap:ROLE"]))
    assert trap.exists()
