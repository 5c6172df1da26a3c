"""What the alignment costs in training: weights against copies, the optimizer steps of the sub-agents, one thread.

The peer is the paper's duplicate-drop taken literally (arXiv 2511.13288): each rollout that called a sub-agent is
brought to d items, of which copies are trajectories like others, each with its own forward and backward pass; d is the
0.99 quantile of the step's calls, and in the row `paper` the 8 of the paper. Ours is `fractional`: each call once, with
a weight. The project's own `duplicate_drop` is no peer here, for it keeps how often a call is among the items as a
weight, and so copies no work either; that this weight and copies are the same step is checked first.

How often sub-agents are called is that of the novice team, whose decisions nano learns from: 0 to 4 consultations at
random in a rollout; steps are as large as those of `trend_market.toml`. Both train the same model (a nano with its own
tokenizer) on the same rollouts. What is saved depends on the calls: where everybody calls once, it is nothing.

Both make the plain pass, in which every item goes through the model: a pass over shared beginnings
(`prefix_tree.py`) computes equal items once, so with it the copies would cost memory and little time.
"""

from __future__ import annotations

import copy
import statistics
import time
from dataclasses import dataclass

import numpy as np

from backend.policies import prefix_tree
from backend.policies.role_policies import RolePolicies
from backend.training.algorithm.alignment import AlignmentMethod, target_count
from backend.training.algorithm.credit import calls_histogram
from backend.training.algorithm.trajectory import Trajectory
from backend.training.curriculum.queries import QueryPool
from backend.training.learning.role_trainer import RoleTrainer
from backend.training.rollout.collect import Rollout, RolloutSettings, collect
from backend.training.sft.warm_start import transcribe
from benchmarks.run import Result
from cryptosentinel.agents.registry import SUB_AGENTS
from cryptosentinel.llm.chat_codec import ChatCodec, make_byte_codec
from cryptosentinel.llm.nano import nano_config, new_nano, train_tokenizer
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scripted_team import novice_policies
from cryptosentinel.team import Team
from cryptosentinel.team_settings import TeamSettings
from simulator.exchange.costs import Costs
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.standard_limits import guard_limits
from tests.standard_settings import sub_credit, trainer_settings
from tests.team_scenes import standard_team

REPETITIONS = 5
STEPS = 4
PAPERS_TARGET = 8
MOST = 0.5
QUERIES, ROLLOUTS, HORIZON, PATHS = 16, 8, 18, 4
VOCABULARY = 512
BETA = (0.1, 0.4, 0.5)
SETTINGS = trainer_settings(learning_rate=1e-4, warmup_steps=1)


@dataclass(frozen=True)
class _Batch:
    """What a role's optimizer is given."""

    trajectories: list[Trajectory]
    advantages: list[float]
    weights: list[float]

    def tokens(self) -> int:
        """Tokens that go through the model, forward and backward: up to the last sampled one, where there is a
        gradient."""
        learnt = zip(self.trajectories, self.advantages, self.weights, strict=True)
        return sum(int(np.flatnonzero(one.mask)[-1]) + 1 for one, a, weight in learnt if a != 0.0 and weight > 0.0)


def run() -> list[Result]:
    """`training.alignment` in tokens of training work over some steps, the same against the paper's d, and
    `training.alignment.seconds` of processor time of one step; each the sum over the sub-agents."""
    pool = QueryPool(generate(SyntheticConfig(bars=600, seed=3, symbols=("AAAUSDT",))), 0, 580, HORIZON)
    settings = standard_team(horizon_bars=HORIZON)
    spoken = transcribe(make_byte_codec(), [pool], settings, 100, 0.3, 1)
    codec = ChatCodec(train_tokenizer([make_byte_codec().decode(list(one.ids)) for one in spoken], VOCABULARY))
    roles = tuple(role.key for role in SUB_AGENTS.values())
    policies = RolePolicies(new_nano(0, nano_config(codec.vocab_size)), roles)
    tokens, seconds = dict.fromkeys(("weights", "copies", "paper"), 0), {"weights": 0.0, "copies": 0.0}
    calls = 0
    for number in range(STEPS):
        groups = _rollouts(codec, settings, pool, number)
        calls += sum(len(one.subs) for group in groups for one in group)
        for role in roles:
            target = target_count(calls_histogram(groups, role))
            weighed = _batch(groups, role, "fractional", target)
            drawn = _batch(groups, role, "duplicate_drop", target)
            copied = _copies(drawn, target)
            tokens["weights"] += weighed.tokens()
            tokens["copies"] += copied.tokens()
            tokens["paper"] += _copies(_batch(groups, role, "duplicate_drop", PAPERS_TARGET), PAPERS_TARGET).tokens()
            if number == 0:
                _check(policies, role, drawn, copied)  # and warms up
                for name, batch in (("weights", weighed), ("copies", copied)):
                    seconds[name] += statistics.median(_step(policies, role, batch)[0] for _ in range(REPETITIONS))
    each = f"{calls / (STEPS * QUERIES * ROLLOUTS):.2f} calls a rollout"
    quantile = f"copies up to the 0.99 quantile, {each}"
    work = float(tokens["weights"])
    return [
        _row("training.alignment", work, "tokens", work / tokens["copies"], quantile),
        _row(
            "training.alignment.paper", work, "tokens", work / tokens["paper"], f"copies up to {PAPERS_TARGET}, {each}"
        ),
        _row("training.alignment.seconds", seconds["weights"], "s", seconds["weights"] / seconds["copies"], quantile),
    ]


def _row(name: str, value: float, unit: str, ratio: float, against: str) -> Result:
    return Result(
        name=name, value=value, unit=unit, against=against, ratio=ratio, target=f"<= {MOST}", met=ratio <= MOST
    )


def _rollouts(codec: ChatCodec, settings: TeamSettings, pool: QueryPool, number: int) -> list[list[Rollout]]:
    """The rollouts of one step of the novice team."""
    engine = ScriptedEngine(codec, novice_policies())
    team = Team(codec, engine.policy_version, settings)
    queries = pool.draw(1, number, QUERIES, easy=False)
    limits = guard_limits()
    judged = RolloutSettings(ROLLOUTS, PATHS, HORIZON, Costs(), 1.0, limits, True)
    return collect(team, engine, queries, judged, number)


def _batch(groups: list[list[Rollout]], role: str, method: AlignmentMethod, target: int) -> _Batch:
    credit = sub_credit(groups, role, method=method, target=target, beta=BETA, seed=0)
    items = [item for item in credit.items if item.reward is not None]
    return _Batch(
        [item.trajectory for item in items], [item.advantage for item in items], [item.weight for item in items]
    )


def _copies(drawn: _Batch, target: int) -> _Batch:
    """`drawn`, a batch of `duplicate_drop`, as the items that it stands for."""
    callers: dict[str, set[int]] = {}
    for one in drawn.trajectories:
        callers.setdefault(one.query, set()).add(one.rollout)
    trajectories: list[Trajectory] = []
    advantages: list[float] = []
    weights: list[float] = []
    for one, advantage, weight in zip(drawn.trajectories, drawn.advantages, drawn.weights, strict=True):
        item = 1.0 / (target * len(callers[one.query]))
        times = round(weight / item)
        trajectories += [one] * times
        advantages += [advantage] * times
        weights += [item] * times
    return _Batch(trajectories, advantages, weights)


def _check(policies: RolePolicies, role: str, drawn: _Batch, copied: _Batch) -> None:
    norms = [_step(policies, role, batch)[1][f"{role}/grad_norm"] for batch in (drawn, copied)]
    if abs(norms[0] - norms[1]) > 1e-4 * norms[0]:
        raise RuntimeError(f"training.alignment: {role}'s copies have the gradient norm {norms[1]}, not {norms[0]}")


def _step(policies: RolePolicies, role: str, batch: _Batch) -> tuple[float, dict[str, float]]:
    """Processor time and metrics of one step of a new trainer on a copy of the policies."""
    trainer = RoleTrainer(copy.deepcopy(policies), role, SETTINGS)
    worthwhile, prefix_tree.WORTHWHILE = prefix_tree.WORTHWHILE, 0.0
    try:
        start = time.process_time()
        metrics = trainer.step(batch.trajectories, batch.advantages, batch.weights)
        return time.process_time() - start, metrics
    finally:
        prefix_tree.WORTHWHILE = worthwhile
