"""A real language model, specialised: `make bench ONLY=learning.smollm2`.

SmolLM2-135M-Instruct with a LoRA adapter a role: imitation of the scripted team (`sft`), then M-GRPO. By the preset
`smollm2` it takes two hours on two cores; where torch sees a GPU the preset is `smollm2_gpu`, and five seeds, each with
an imitation of its own, are trained side by side in some ten minutes. It goes on where it was interrupted
(`runs/PRESET/seed-N/`) and runs only when it is named. The folder of the model is named by CRYPTOSENTINEL_SMOLLM2
(`python -m scripts.smollm2 FOLDER` makes it); without it there is no row.

`learning.smollm2.calls.*`: the share of valid first calls over 400 turns a seed, 100 of each role, of the model as it
is (full prompts, which list the tools), unconstrained and constrained to the tools' grammar, and after `sft` (short
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
from collections.abc import Sequence
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
from backend.training.algorithm.rewards import main_reward
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
CALLS = ("unconstrained", "constrained", AFTER_SFT)
TEAMS = ("holding", "scripted", "before", "after")


@dataclass(frozen=True)
class Extent:
    """How much is done: the preset, seeds of the training, states of the rewards, and how many of them at a time."""

    preset: str
    seeds: tuple[int, ...]
    states: int
    chunk: int


ON_A_CPU = Extent("smollm2", (1,), 96, 48)
ON_A_GPU = Extent("smollm2_gpu", (1, 2, 3, 4, 5), 384, 192)


def run() -> list[Result]:
    """The rows `learning.smollm2.*`."""
    base = os.environ.get(SMOLLM2)
    if not base:
        return []
    extent = _extent()
    if len(extent.seeds) == 1:
        seeds = [_measured(Path(base), extent.seeds[0])]
    else:
        seeds = _side_by_side(Path(base), extent.seeds)
    return [*_call_rows(seeds), *_reward_rows(seeds)]


def _extent() -> Extent:
    return ON_A_GPU if torch.cuda.is_available() else ON_A_CPU


def _side_by_side(base: Path, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """What `_measured` finds for each seed, in a process each."""
    module = f"{__package__}.{Path(__file__).stem}"
    running = [subprocess.Popen([sys.executable, "-m", module, str(seed)]) for seed in seeds]
    try:
        failed = [seed for seed, process in zip(seeds, running, strict=True) if process.wait()]
    finally:
        for process in running:
            process.kill()
    if failed:
        raise RuntimeError(f"seeds {', '.join(map(str, failed))} did not come to their end: see above")
    return [_measured(base, seed) for seed in seeds]


def _measured(base: Path, seed: int) -> dict[str, Any]:
    """Everything about one seed, from its files where it was measured before."""
    extent = _extent()
    folder = Path("runs") / extent.preset / f"seed-{seed}"
    trained = _trained(base.resolve(), folder, extent.preset, seed)
    config = load_config(extent.preset)
    market = load_market(config.market.model_copy(update={"seed": OTHER_SEED}), config.costs)
    found: dict[str, Any] = {
        name: _kept(folder, f"reward-{name}", lambda name=name: _rewards(name, config, trained, market, extent))
        for name in TEAMS
    }
    for name in CALLS:
        found[name] = {role: calls_of(folder, name, role, str(base), trained, market) for role in ROLES}
    return found


def _trained(base: Path, folder: Path, preset: str, seed: int) -> Path:
    """The folder of the trained team, which is made unless it is there."""
    sft, kept = folder / "sft", folder / "team.txt"
    if kept.is_file():
        return Path(kept.read_text().strip())
    if not (sft / "scores.json").is_file():
        learnt = (f"training.base_model={base}", f"sft.seed={seed}", f"training.seed={seed}")
        fine_tune_roles(SftRequest(config=preset, overrides=learnt, folder=sft))
    begun = folder / "runs"
    unfinished = sorted(path.name for path in begun.glob("train-*") if not (path / MANIFEST).is_file())
    asked = (f"training.start_from={sft.resolve()}", f"training.seed={seed}")
    request = TrainRequest(resume=unfinished[-1]) if unfinished else TrainRequest(config=preset, overrides=asked)
    trained = train_team(request, store=folder / "store", runs=begun).folder
    kept.write_text(f"{trained}\n")
    return trained


# -- valid first calls ----------------------------------------------------------------------------------------------


def _call_rows(seeds: Sequence[dict[str, Any]]) -> list[Result]:
    rows = []
    for name in CALLS:
        counts = {role: sum(one[name][role] for one in seeds) for role in ROLES}
        each = TURNS * len(seeds)
        share = sum(counts.values()) / (each * len(counts))
        said = ", ".join(f"{role} {count}" for role, count in counts.items())
        rows.append(
            Result(
                name=f"learning.smollm2.calls.{name}",
                value=100 * share,
                unit=f"% of {each * len(counts)} first calls",
                against=f"{said} of {each} each",
                ratio=share,
                target=LEAST_VALID if name == AFTER_SFT else "reported",
                met=share >= LEAST_VALID or name != AFTER_SFT,
            )
        )
    return rows


def calls_of(folder: Path, name: str, role: str, base: str, trained: Path, market: Market) -> int:
    """How many of the first calls of a role are valid, measured unless that was done before."""
    preset = _extent().preset

    def measure() -> dict[str, Any]:
        plain = [f"engine.model={base}", "team.prompts=full", f"team.max_tokens={FIRST_CALL_TOKENS}"]
        plain.append(f"engine.constrained={str(name == CALLS[1]).lower()}")
        config = load_config(preset, [] if name == AFTER_SFT else plain)
        loaded = (
            load_team(str(trained), config.team, trained=False)
            if name == AFTER_SFT
            else configured_team(PROMPTED, config).at_temperature(config.training.temperature)
        )
        queries, _ = _states(config, market, TURNS)
        return {"valid": _valid_first_calls(loaded, _first_turns(loaded, config, queries)[role])}

    valid: int = _kept(folder, f"calls-{name}-{role}", measure)["valid"]
    return valid


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


def _reward_rows(seeds: Sequence[dict[str, Any]]) -> list[Result]:
    rewards = {name: np.array([one[name]["reward"] for one in seeds]) for name in TEAMS}  # (seeds, states)
    gain = rewards["after"] - rewards["before"]
    gained, by_seed = grid_interval(gain, nested=False), ", ".join(f"{one:+.4f}" for one in gain.mean(axis=1))
    what = f"{gained.windows} unseen states" + (f", {len(seeds)} seeds" if len(seeds) > 1 else "")
    rows = [
        Result(
            name="learning.smollm2.reward",
            value=gained.mean,
            unit="of the manager's reward",
            against=f"after sft alone, {what}, {SAMPLES} decisions each; 95 % interval {gained.low:+.4f} to "
            f"{gained.high:+.4f}; by seed {by_seed}",
            ratio=None,
            target="interval > 0",
            met=gained.low > 0.0,
        )
    ]
    for name, reward in rewards.items():
        mean = grid_interval(reward, nested=False)
        valid = [one[name]["valid"] for one in seeds]
        said = ", ".join(f"{role} {np.mean([one[role] for one in valid]):.1%}" for role in valid[0])
        rows.append(
            Result(
                name=f"learning.smollm2.reward.{name}",
                value=mean.mean,
                unit="mean reward of the manager",
                against=f"95 % interval {mean.low:.4f} to {mean.high:.4f}; net return of a decision "
                f"{100 * float(np.mean([one[name]['net_return'] for one in seeds])):+.3f} %"
                + (f"; valid {said}" if said else "")
                + f"; {sum(one[name]['seconds'] for one in seeds):.0f} s",
                ratio=None,
                target="reported",
                met=True,
            )
        )
    return rows


def _rewards(name: str, config: Config, trained: Path, market: Market, extent: Extent) -> dict[str, Any]:
    """Mean reward and net return of each state, (states,), and the share of valid answers by role."""
    queries, settings = _states(config, market, extent.states)
    began, alpha = time.monotonic(), config.training.alpha
    rewards: list[float] = []
    returns: list[float] = []
    if name == "holding":
        for query in queries:
            outcome = settings.scorer(query).outcome([])
            rewards.append(main_reward(True, 1.0, outcome.score, alpha))
            returns.append(outcome.net_return)
        return {"reward": rewards, "net_return": returns, "valid": {}, "seconds": time.monotonic() - began}
    if name == "scripted":
        loaded, settings = scripted_team(config.team), replace(settings, rollouts_per_query=1)
    else:
        loaded = load_team(str(trained), config.team, trained=name == "after")
    spoken: dict[str, list[bool]] = {}
    for start in range(0, len(queries), extent.chunk):
        for group in collect(loaded.team, loaded.engine, queries[start : start + extent.chunk], settings, OTHER_SEED):
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
        outcome_scale=training.experimental.outcome_scale,
        train_thoughts=training.train_thoughts,
    )
    return pool.draw(OTHER_SEED, 0, count, easy=False), settings


def _kept(folder: Path, name: str, measure: Any) -> dict[str, Any]:
    """What `measure` finds, kept in a file, so that an interrupted benchmark goes on."""
    path = folder / f"{name}.json"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".tmp")
        partial.write_text(json.dumps(measure()))
        partial.replace(path)
    document: dict[str, Any] = json.loads(path.read_text())
    return document


if __name__ == "__main__":
    _measured(Path(os.environ[SMOLLM2]), int(sys.argv[1]))
