"""How many tokens a team reads for one decision on four coins, in the tokens of SmolLM2.

The scripted team says what there is to say, so the same conversations are compared: short prompts with all schemas, as
language models once got them, full prompts coin by coin, and full prompts on the whole portfolio. `new` are the tokens
that no earlier request of the decision began with: what is left to read for a server with a prefix cache.

The folder of SmolLM2 is named by CRYPTOSENTINEL_SMOLLM2 (`python -m scripts.smollm2 FOLDER` makes it); without it there
is no row.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile

import numpy as np
from transformers import AutoTokenizer

from benchmarks.run import Result
from cryptosentinel.guard.guard import Guard
from cryptosentinel.llm.engine import Completion, Request
from cryptosentinel.llm.scripted import ScriptedEngine
from cryptosentinel.scheduler import run_all
from cryptosentinel.scripted_team import expert_policies
from cryptosentinel.team import Team
from cryptosentinel.team_settings import Prompts
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.standard_limits import guard_limits
from tests.team_scenes import account_in, codec, standard_team

SMOLLM2 = "CRYPTOSENTINEL_SMOLLM2"
MOST = 12_000
BARS = range(140, 320, 20)
COINS = ("AAAUSDT", "BBBUSDT", "CCCUSDT", "DDDUSDT")


def run() -> list[Result]:
    """The rows `team.reading.*`."""
    folder = os.environ.get(SMOLLM2)
    if not folder:
        return []
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    rows = []
    kinds: tuple[tuple[str, Prompts, bool], ...] = (
        ("short", "short", False),
        ("full", "full", False),
        ("portfolio", "full", True),
    )
    for name, prompts, portfolio in kinds:
        read, new = [], []
        for bar in BARS:
            prompts_read = [tokenizer.encode(text) for text in _asked(prompts, portfolio, bar)]
            read.append(sum(map(len, prompts_read)))
            new.append(sum(len(one) - _known(one, prompts_read[:n]) for n, one in enumerate(prompts_read)))
        rows += [_row(f"team.reading.{name}", read), _row(f"team.reading.{name}.new", new)]
    return rows


def _asked(prompts: Prompts, portfolio: bool, bar: int) -> list[str]:
    """All prompts of one decision on all coins."""
    market = generate(SyntheticConfig(bars=320, seed=3, symbols=COINS))
    engine = _Listening(ScriptedEngine(codec(), expert_policies(portfolio=portfolio)))
    settings = standard_team(prompts=prompts, schemas_in_prompt=True, portfolio=portfolio)
    team = Team(codec(), engine.policy_version, settings)
    groups = [market.symbols] if portfolio else [(symbol,) for symbol in market.symbols]
    account = account_in(market, bar)
    for symbols in groups:
        task = team.decide(market.view(bar), account, symbols, Guard(guard_limits()), 1, share=1.0 / len(groups))
        run_all([task], engine)
    return [codec().decode(list(request.ids)) for request in engine.heard]


class _Listening:
    """An engine that keeps what it is asked."""

    def __init__(self, engine: ScriptedEngine) -> None:
        self.name, self.policy_version, self._engine = engine.name, engine.policy_version, engine
        self.heard: list[Request] = []

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.heard += requests
        return self._engine.generate(requests)


def _known(prompt: list[int], before: Sequence[list[int]]) -> int:
    """How many tokens of `prompt` an earlier prompt begins with."""
    return max(
        (sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(prompt, one, strict=False))) for one in before),
        default=0,
    )


def _row(name: str, counts: Sequence[int]) -> Result:
    mean = float(np.mean(counts))
    return Result(
        name=name, value=mean, unit=f"tokens, {min(counts)} to {max(counts)}", against=f"{MOST}",
        ratio=mean / MOST, target="<= 1.0", met=mean <= MOST,
    )  # fmt: skip
