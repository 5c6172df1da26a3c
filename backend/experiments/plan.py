"""The file of an experiment: question, test, arms, seeds and windows, all written before anything is run.

Whatever decides a result is in the file or in the preset that it names, so that its SHA-256 stands for the experiment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from backend.config.base import suggestion
from backend.config.load import load_config, parse_toml
from backend.config.schema import Config
from backend.experiments.measures import STATES_MEASURE, problem_with_states
from backend.runs.backtest import names_strategy
from backend.runs.requests import check_subject
from cryptosentinel.team_settings import Section
from simulator.documents import read_bytes
from simulator.errors import UserError
from simulator.folders import data_folder
from simulator.market.timeframes import parse_time
from simulator.strategies import MatchedRandom

_MOST_BYTES = 2**20
_NAME = re.compile(r"[a-z0-9][a-z0-9_+.-]{0,63}")
_SEEDS = re.compile(r"(\d+)(?:-(\d+))?")
_MOST_SEEDS = 1_000
# What an arm may change: who trades, and how it was trained. All else is the same for all, or nothing is compared.
OF_AN_ARM = ("team", "training", "nano", "sft", "guard", "engine", "budget")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH")  # in the name of a variable


TRAINED_HERE, UNTRAINED = "train", "untrained"  # teams that an experiment makes
TEACHER = "teacher"  # the scripted team of `nano.teacher`
TEST_LEVEL = 0.95  # of intervals and of the tests, which Holm's correction covers together


class TestPlan(Section):
    """Which figure is compared with which arm's."""

    measure: Literal["total_return", "held_out_value"] = Field(
        "total_return",
        description="of a window; held_out_value: the expected outcome of a decision, over evaluation.states held-out "
        "states and scenarios that all arms have in common, with the likeliest answers",
    )
    against: str = Field("", description="the arm that all others are compared with; empty: the first")


class WindowsPlan(Section):
    """Which bars are traded: the held-out part of the preset's market, or, with both days, the bars from `test_from`
    on, with a version chosen on those from `validation_from` on."""

    validation_from: str = ""
    test_from: str = ""
    count: int = Field(0, ge=0, le=10_000, description="windows in the test part; 0: as evaluation.windows")
    decisions: int = Field(0, ge=0, le=10_000, description="decisions of a window; 0: as evaluation")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.validation_from) != bool(self.test_from):
            raise ValueError("validation_from and test_from belong together, as 2023-01-01")
        if self.test_from and parse_time(self.validation_from) >= parse_time(self.test_from):
            raise ValueError("validation_from must be before test_from")
        return self


class ArmPlan(Section):
    """One of those that are compared, with settings of its own. `team` is a team or strategy as a backtest takes it, or
    `train` (trained here), `untrained` (nano after its warm start), `teacher` (the rules that it learned from) or
    `matched_random`."""

    name: str
    team: str = Field(min_length=1)
    set: tuple[str, ...] = ()
    tokens: int = Field(0, ge=0, description="tokens that the training's rollouts may take; 0: its steps decide")
    greedy: bool = False
    like: str = Field("", description="of team = 'matched_random': the arm whose extent and rhythm it copies")

    @field_validator("name")
    @classmethod
    def _short(cls, name: str) -> str:
        if not _NAME.fullmatch(name):
            raise ValueError(f"'{name}' is not a name of an arm: write lower-case letters, digits, _ + . -")
        return name

    @model_validator(mode="after")
    def _check(self) -> Self:
        if bool(self.like) != (self.team == MatchedRandom.name):
            raise ValueError(f"arm '{self.name}': `like` names an arm, and belongs to team = 'matched_random'")
        for text in self.set:
            section = text.partition(".")[0].strip()
            if section not in OF_AN_ARM:
                raise ValueError(
                    f"arm '{self.name}': '{text}' would give it a market, costs or windows of its own, so that "
                    f"it could not be compared; an arm may set {', '.join(OF_AN_ARM)}"
                )
        if self.tokens and self.team != TRAINED_HERE:
            raise ValueError(f"arm '{self.name}': tokens are of an arm that is trained here (team = '{TRAINED_HERE}')")
        return self


class ExperimentPlan(Section):
    """All of an experiment."""

    question: str = Field(min_length=10)
    config: str = "demo"
    set: tuple[str, ...] = ()
    seeds: str = "1-5"
    test: TestPlan = Field(default_factory=TestPlan)
    windows: WindowsPlan = Field(default_factory=WindowsPlan)
    arms: tuple[ArmPlan, ...] = Field(min_length=1)

    @field_validator("seeds")
    @classmethod
    def _readable(cls, text: str) -> str:
        seed_numbers(text)
        return text

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [arm.name for arm in self.arms]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two arms are called '{name}'")
        wanted = [("test.against", self.test.against)] if self.test.against else []
        for key, name in [*wanted, *((f"like of arm '{arm.name}'", arm.like) for arm in self.arms if arm.like)]:
            if name not in names:
                raise ValueError(
                    f"{key} = '{name}' is not an arm{suggestion(name, names)}; there are {', '.join(names)}"
                )
        for arm in self.arms:
            if any(other.name == arm.like and other.like for other in self.arms):
                raise ValueError(f"arm '{arm.name}' is like '{arm.like}', which is random itself")
        return self

    @property
    def reference(self) -> str:
        """The name of the arm that all others are compared with."""
        return self.test.against or self.arms[0].name

    def arm(self, name: str) -> ArmPlan:
        """The arm called `name`."""
        return next(arm for arm in self.arms if arm.name == name)


@dataclass(frozen=True)
class ExperimentFile:
    """An experiment as it was read: its name, its text, what the text says, and the configuration that all share."""

    name: str
    text: str
    plan: ExperimentPlan
    config: Config
    seeds: tuple[int, ...]

    @property
    def digest(self) -> str:
        """SHA-256 of all that was decided before the run: the file, the seeds and the preset behind it."""
        parts = [self.text, json.dumps(self.seeds), json.dumps(self.config.to_dict(), sort_keys=True)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    @property
    def nested(self) -> bool:
        """Whether each seed has windows of its own, on a market that it generates."""
        return not self.config.market.data

    def settings(self, arm: ArmPlan, seed: int) -> Config:
        """The configuration of an arm for one seed. Raises `ConfigError`."""
        changed = [*self._of_seed(seed), *arm.set]
        changed += [f"training.tokens={arm.tokens}"] if arm.tokens else []
        return load_config(self.config, changed, name=f"arm '{arm.name}' of the experiment")

    def shared_settings(self, seed: int) -> Config:
        """What all arms have in common for one seed, by which they are measured."""
        return load_config(self.config, self._of_seed(seed), name="the experiment")

    def _of_seed(self, seed: int) -> list[str]:
        changed = [f"training.seed={seed}"]
        changed += [f"market.seed={seed}"] if self.nested else []
        windows = self.plan.windows
        changed += [f"evaluation.windows={windows.count}"] if windows.count else []
        changed += [f"evaluation.decisions_per_window={windows.decisions}"] if windows.decisions else []
        return changed


def read_experiment(path: Path, seeds: str = "", name: str = "") -> ExperimentFile:
    """The experiment in a file; `seeds` replaces those of the file. Raises `UserError` for what cannot be run, before
    anything is. Like a file for --config it counts as the user's own: what it names is run, contacted and read."""
    if not path.is_file():
        raise UserError(f"{path}: there is no such file; give the TOML file of an experiment, as experiments/NAME.toml")
    try:
        text = read_bytes(path, _MOST_BYTES).decode("utf-8")
        plan = ExperimentPlan.model_validate_json(json.dumps(parse_toml(text), default=str))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except ValidationError as error:
        raise UserError("\n".join(dict.fromkeys(_problem(path, one) for one in error.errors()))) from error
    except ValueError as error:
        raise UserError(f"{path}: this is not valid TOML: {error}") from error
    called = name or path.stem
    if not _NAME.fullmatch(called):
        raise UserError(f"'{called}' is not a name of an experiment: write lower-case letters, digits, _ + . -")
    config = load_config(plan.config, [with_environment(one, str(path)) for one in plan.set])
    experiment = ExperimentFile(called, text, plan, config, seed_numbers(seeds or plan.seeds))
    _check(path, experiment)
    return experiment


def seed_numbers(text: str) -> tuple[int, ...]:
    """The seeds of `1-10` or `1,2,5-8`. Raises `ValueError`, in words, for anything else."""
    found: list[int] = []
    for part in text.split(","):
        match = _SEEDS.fullmatch(part.strip())
        if match is None:
            raise UserError(f"'{text}' are not seeds: write 1-10, or 1,2,5-8")
        first = int(match[1])
        last = int(match[2] or first)
        if last < first or last - first >= _MOST_SEEDS:
            raise UserError(f"'{part.strip()}' are not seeds: at most {_MOST_SEEDS}, the lower one first")
        found += range(first, last + 1)
    if len(set(found)) < len(found):
        raise UserError(f"'{text}' names a seed twice")
    return tuple(found)


def with_environment(text: str, where: str) -> str:
    """`text` with a `$NAME` in it replaced by that variable of the environment. Raises `UserError` where it is not
    set, and for one that is called as secrets are: settings are kept in records."""

    def value(match: re.Match[str]) -> str:
        if _SECRET.search(match[1]):
            raise UserError(f"{where}: {text} names {match[1]}, which may be a secret: settings are kept and shown")
        found = os.environ.get(match[1])
        if found is None:
            raise UserError(f"{where}: {text} needs the variable {match[1]} of the environment, which is not set")
        return found

    return re.sub(r"\$([A-Z_][A-Z0-9_]*)", value, text)


def _check(path: Path, experiment: ExperimentFile) -> None:
    """What can be refused before anything is loaded."""
    plan, config = experiment.plan, experiment.config
    if config.market.data:
        data_folder(config.market.data)
    if plan.test.measure == STATES_MEASURE:
        strategies = {arm.name: arm.team for arm in plan.arms if names_strategy(arm.team)}
        problem = problem_with_states(config, strategies)
        if problem:
            raise UserError(f"{path}: measure = '{STATES_MEASURE}' {problem}")
    for arm in plan.arms:
        if arm.team not in (TRAINED_HERE, UNTRAINED, TEACHER, MatchedRandom.name):
            check_subject(arm.team)
        experiment.settings(arm, experiment.seeds[0])


def _problem(path: Path, problem: object) -> str:
    found: dict[str, object] = dict(problem)  # type: ignore[call-overload]  # pydantic's typed dict
    location = found["loc"]
    assert isinstance(location, tuple)
    key = ".".join(str(part) for part in location)
    if found["type"] == "extra_forbidden":
        return f"{path}: unknown key '{key}'"
    message = str(found["msg"]).removeprefix("Value error, ")
    return f"{path}: {f'{key}: ' if key else ''}{message}"
