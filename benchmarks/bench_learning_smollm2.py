"""A real language model, specialised: `make bench ONLY=learning.smollm2`.

SmolLM2-135M-Instruct with a LoRA adapter a role: imitation of the scripted team (`sft`), then M-GRPO. By the preset
`smollm2` it takes two hours on two cores; where torch sees a GPU, M-GRPO continues from one imitation with three seeds,
side by side. It resumes where it was interrupted (`runs/PRESET/`) and runs only by its name. CRYPTOSENTINEL_SMOLLM2 is
the folder of the model (`python -m scripts.smollm2 FOLDER` makes it); without it there is no row.

`learning.smollm2.calls.*`: the share of valid first calls over 400 turns, 100 of each role, of the model as it is
(full prompts, which list the tools), unconstrained and constrained to the tools' grammar, and after `sft` (short
prompts). A call is valid if the conversation goes on with it.

`learning.smollm2.reward`: the manager's reward R_M (0.1 format, 0.9 outcome, 0 where the format is invalid), after
M-GRPO less before, on states of a market of another seed, sampled as in training with seeds of its own. The interval is
one over states, or over seeds and states where there are several seeds (`statistics/seed_grid.py`), paired: all teams
decide on the same states. After M-GRPO is the version that the run keeps, which its validation chose. Beside them are
the scripted team and holding what is held.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from backend.builders.loaded_team import LoadedTeam, scripted_team
from backend.builders.market import costs_of, limits_of, load_market
from backend.builders.teams import configured_team, load_team
from backend.config.load import load_config
from backend.config.schema import PROMPTED, Config
from backend.models.manifest import MANIFEST
from backend.runs.requests import SftRequest, TrainRequest
from backend.runs.train import fine_tune_roles, train_team
from backend.statistics.seed_grid import grid_interval
from backend.training.algorithm.rewards import ALPHA, main_reward
from backend.training.curriculum.queries import Query, gross_limit, pools_of
from backend.training.rollout.collect import RolloutSettings, collect
from benchmarks.run import Result
from cryptosentinel.agents.manager import AskAboutPosition, AskAnalyst
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.engine import Request
from cryptosentinel.team import AgentTask, Question
from simulator.market.market import Market

BY_NAME_ONLY = True  # it takes two hours without a GPU
SMOLLM2 = "CRYPTOSENTINEL_SMOLLM2"
OTHER_SEED = 1001  # of the market, the states and the sampling that the training has not seen
TURNS = 100  # first turns of each role
SAMPLES = 2  # decisions on a state
FIRST_CALL_TOKENS = 128
LEAST_VALID = 0.95
AFTER_SFT = "after_sft"
Alpha = tuple[float, float]
CALLS = ("unconstrained", "constrained", AFTER_SFT)
PLAIN = ("holding", "scripted", AFTER_SFT)  # teams that no seed of M-GRPO has to do with
AFTER = "after"


@dataclass(frozen=True)
class Extent:
    """How much is done: the preset, seeds of the training, states of the rewards, and how many of them at a time."""

    preset: str
    seeds: tuple[int, ...]
    states: int
    chunk: int


ON_A_CPU = Extent("smollm2", (1,), 96, 48)
ON_A_GPU = Extent("smollm2", (1, 2, 3), 256, 128)


def run() -> list[Result]:
    """The rows `learning.smollm2.*`."""
    base = os.environ.get(SMOLLM2)
    if not base:
        return []
    there = torch.cuda.is_available()
    work = Work(Path(base).resolve(), ON_A_GPU if there else ON_A_CPU)
    work.imitate()
    with _side_by_side(work.extent.seeds if there else ()):
        plain = {name: work.rewards(name) for name in PLAIN}
        calls = {name: {role: work.first_calls(name, role) for role in ROLES} for name in CALLS}
    return [*_call_rows(calls), *_reward_rows(plain, [work.after(seed) for seed in work.extent.seeds])]


@contextmanager
def _side_by_side(seeds: Sequence[int]) -> Iterator[None]:
    """Train and measure each seed in a process of its own, beside what the block does; wait for them at its end."""
    module = f"{__package__}.{Path(__file__).stem}"
    running = [subprocess.Popen([sys.executable, "-m", module, str(seed)]) for seed in seeds]
    try:
        yield
        failed = [seed for seed, process in zip(seeds, running, strict=True) if process.wait()]
    finally:
        for process in running:
            process.kill()
            process.wait()
    if failed:
        raise RuntimeError(f"seeds {', '.join(map(str, failed))} did not come to their end: see above")


class Work:
    """What is made and measured, each once: it is kept below `runs/PRESET/`.

    `base` is the model's folder.
    """

    def __init__(self, base: Path, extent: Extent) -> None:
        self.base, self.extent = base, extent
        self.folder = Path("runs") / extent.preset
        self.config = load_config(extent.preset)
        market = self.config.market.model_copy(update={"seed": OTHER_SEED})
        self.market = load_market(market, self.config.costs)

    @property
    def sft(self) -> Path:
        """The folder of the team that imitates the scripted one."""
        return self.folder / "sft"

    def imitate(self) -> None:
        """Make that team."""
        if not (self.sft / "scores.json").is_file():
            learnt = (f"training.base_model={self.base}",)
            fine_tune_roles(SftRequest(config=self.extent.preset, overrides=learnt, folder=self.sft))

    def trained(self, seed: int) -> Path:
        """The folder of the team that M-GRPO made of it."""
        folder = self.folder / f"seed-{seed}"
        kept, begun = folder / "team.txt", folder / "runs"
        if kept.is_file():
            return Path(kept.read_text().strip())
        unfinished = sorted(path.name for path in begun.glob("train-*") if not (path / MANIFEST).is_file())
        overrides = (f"training.start_from={self.sft.resolve()}", f"training.seed={seed}")
        request = (
            TrainRequest(resume=unfinished[-1])
            if unfinished
            else TrainRequest(config=self.extent.preset, overrides=overrides)
        )
        team = train_team(request, store=folder / "store", runs=begun).folder
        kept.write_text(f"{team}\n")
        return team

    def after(self, seed: int) -> dict[str, Any]:
        """What the trained team of a seed earns."""
        team = str(self.trained(seed))
        return self._kept(
            f"seed-{seed}/reward",
            lambda: _rewards(
                load_team(team, self.config.team, base=self.config.training.base_model), *self._states(SAMPLES)
            ),
        )

    def rewards(self, name: str) -> dict[str, Any]:
        """What one of `PLAIN` earns."""
        if name == "holding":
            return self._kept("reward-holding", lambda: _held(*self._states(SAMPLES)))
        if name == "scripted":
            return self._kept("reward-scripted", lambda: _rewards(scripted_team(self.config.team), *self._states(1)))
        return self._kept(
            f"reward-{name}",
            lambda: _rewards(
                load_team(str(self.sft), self.config.team, base=self.config.training.base_model), *self._states(SAMPLES)
            ),
        )

    def first_calls(self, name: str, role: str) -> int:
        """How many of the first calls of a role are valid."""

        def measure() -> dict[str, Any]:
            config = self.config
            if name == AFTER_SFT:
                loaded = load_team(str(self.sft), config.team, base=config.training.base_model)
            else:
                plain = [f"engine.model={self.base}", "team.prompts=full", f"team.max_tokens={FIRST_CALL_TOKENS}"]
                plain.append(f"engine.constrained={str(name == CALLS[1]).lower()}")
                config = load_config(self.extent.preset, plain)
                loaded = configured_team(PROMPTED, config).at_temperature(config.training.temperature)
            queries, _ = _states(config, self.market, TURNS)
            return {"valid": _valid_first_calls(loaded, _first_turns(loaded, config, queries)[role])}

        valid: int = self._kept(f"calls-{name}-{role}", measure)["valid"]
        return valid

    def _states(self, samples: int) -> tuple[list[Query], RolloutSettings, Alpha, int]:
        queries, settings = _states(self.config, self.market, self.extent.states)
        return queries, replace(settings, rollouts_per_query=samples), ALPHA, self.extent.chunk

    def _kept(self, name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """What `measure` finds, kept in a file, so that an interrupted benchmark goes on."""
        path = self.folder / f"{name}.json"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(".tmp")
            partial.write_text(json.dumps(measure()))
            partial.replace(path)
        document: dict[str, Any] = json.loads(path.read_text())
        return document


# -- valid first calls ----------------------------------------------------------------------------------------------


def _call_rows(calls: Mapping[str, Mapping[str, int]]) -> list[Result]:
    rows = []
    for name, counts in calls.items():
        share = sum(counts.values()) / (TURNS * len(counts))
        shares = ", ".join(f"{role} {count}" for role, count in counts.items())
        rows.append(
            Result(
                name=f"learning.smollm2.calls.{name}",
                value=100 * share,
                unit=f"% of {TURNS * len(counts)} first calls",
                against=f"{shares} of {TURNS} each",
                ratio=share,
                target=LEAST_VALID if name == AFTER_SFT else "reported",
                met=share >= LEAST_VALID or name != AFTER_SFT,
            )
        )
    return rows


def _first_turns(loaded: LoadedTeam, config: Config, queries: Sequence[Query]) -> dict[str, list[AgentTask[Any]]]:
    """A conversation of each role about each state: the manager's decision, and what the sub-agents are asked."""
    team, tasks = loaded.team, dict[str, list[AgentTask[Any]]]()
    limits = limits_of(config.guard)
    tasks[team.manager.key] = [
        team.decide(query.view(), query.account(), query.symbols, Guard(limits), OTHER_SEED + number)
        for number, query in enumerate(queries)
    ]
    for tool, role in team.sub_agents.items():
        tasks[role.key] = [
            team.consult(tool, [_question(tool, query, number)], query.view(), query.account(), OTHER_SEED + number)
            for number, query in enumerate(queries)
        ]
    return tasks


def _question(tool: str, query: Query, number: int) -> Question:
    """What a sub-agent is asked: about the coin, or about a whole position, long and short by turns."""
    if tool == "consult_market_analyst":
        return AskAnalyst(symbol=query.symbol)
    return AskAboutPosition(symbol=query.symbol, side="long" if number % 2 else "short", exposure=1.0)


def _valid_first_calls(loaded: LoadedTeam, tasks: Sequence[AgentTask[Any]]) -> int:
    """How many conversations go on, or end with an answer, after the first turn."""
    requests: list[Request] = [next(task)[0] for task in tasks]
    answers = loaded.engine.generate(requests[:1])  # what all of them begin with is read once
    answers += loaded.engine.generate(requests[1:])
    valid = 0
    for task, answer in zip(tasks, answers, strict=True):
        try:
            task.send([answer])
            valid += 1
        except StopIteration as ended:
            valid += getattr(ended.value, "manager", ended.value).valid
    return valid


# -- rewards --------------------------------------------------------------------------------------------------------


def _reward_rows(plain: Mapping[str, dict[str, Any]], trained: Sequence[dict[str, Any]]) -> list[Result]:
    """Rows of the gain and of each team; rewards are (seeds, states)."""
    teams = {**{name: [found] for name, found in plain.items()}, AFTER: list(trained)}
    rewards = {name: np.array([one["reward"] for one in found]) for name, found in teams.items()}
    gain = rewards[AFTER] - rewards[AFTER_SFT]
    gained, by_seed = grid_interval(gain, nested=False), ", ".join(f"{one:+.4f}" for one in gain.mean(axis=1))
    rows = [
        Result(
            name="learning.smollm2.reward",
            value=gained.mean,
            unit="of the manager's reward",
            against=f"after sft alone, {gained.windows} unseen states, {SAMPLES} decisions each; 95 % interval "
            f"{gained.low:+.4f} to {gained.high:+.4f}; by seed of M-GRPO {by_seed}",
            ratio=None,
            target="interval > 0",
            met=gained.low > 0.0,
        )
    ]
    for name, found in teams.items():
        mean = grid_interval(rewards[name], nested=False)
        shares = ", ".join(f"{role} {np.mean([one['valid'][role] for one in found]):.1%}" for role in found[0]["valid"])
        rows.append(
            Result(
                name=f"learning.smollm2.reward.{name}",
                value=mean.mean,
                unit="mean reward of the manager",
                against=f"95 % interval {mean.low:.4f} to {mean.high:.4f}; net return of a decision "
                f"{100 * float(np.mean([one['net_return'] for one in found])):+.3f} %"
                + (f"; valid {shares}" if shares else "")
                + f"; {sum(one['seconds'] for one in found):.0f} s",
                ratio=None,
                target="reported",
                met=True,
            )
        )
    return rows


def _held(queries: Sequence[Query], settings: RolloutSettings, alpha: Alpha, chunk: int) -> dict[str, Any]:
    """What holding earns: as `_rewards`."""
    began = time.monotonic()
    outcomes = [settings.scorer(query).outcome([]) for query in queries]
    return {
        "reward": [main_reward(True, 1.0, one.score, alpha) for one in outcomes],
        "net_return": [one.net_return for one in outcomes],
        "valid": {},
        "seconds": time.monotonic() - began,
    }


def _rewards(
    loaded: LoadedTeam, queries: Sequence[Query], settings: RolloutSettings, alpha: Alpha, chunk: int
) -> dict[str, Any]:
    """Mean reward and net return of each state, (states,), and the share of valid answers by role."""
    began = time.monotonic()
    rewards: list[float] = []
    returns: list[float] = []
    spoken: dict[str, list[bool]] = {}
    for start in range(0, len(queries), chunk):
        for group in collect(loaded.team, loaded.engine, queries[start : start + chunk], settings, OTHER_SEED):
            paid = [main_reward(one.main.valid, one.main.format_score, one.outcome.score, alpha) for one in group]
            rewards.append(float(np.mean(paid)))
            returns.append(float(np.mean([one.outcome.net_return for one in group])))
            for said in (call for one in group for call in (one.main, *one.subs)):
                spoken.setdefault(said.role, []).append(said.valid)
    valid = {role: float(np.mean(each)) for role, each in spoken.items()}
    return {"reward": rewards, "net_return": returns, "valid": valid, "seconds": time.monotonic() - began}


def _states(config: Config, market: Market, count: int) -> tuple[list[Query], RolloutSettings]:
    """States of the unseen market, and how decisions on them are scored."""
    training, horizon = config.training, config.team.horizon_bars
    [pool] = pools_of(training, market, [(0, len(market))], horizon, gross_limit(config))
    settings = RolloutSettings(
        rollouts_per_query=SAMPLES,
        scenario_paths=training.scenario_paths,
        horizon_bars=horizon,
        costs=costs_of(config.costs),
        max_leverage=config.costs.max_leverage,
        limits=limits_of(config.guard),
    )
    return pool.draw(OTHER_SEED, 0, count, easy=False), settings


if __name__ == "__main__":
    Work(Path(os.environ[SMOLLM2]).resolve(), ON_A_GPU).after(int(sys.argv[1]))
