"""Speed of playing back a recorded run: decisions a second of the whole team, one thread, against a limit of 500.

The scripted team trades a window of the synthetic market, each decision consulting whom it likes, and is recorded.
Then the run is played from the cassette: briefs, tools, protocol, orders, guard, account, and the look-up of each call.
Opening the cassette is not counted. What is played must equal what was recorded. Seconds are those of the processor:
nothing here waits, so on an idle core the clock shows the same.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from backend.builders.loaded_team import scripted_team
from backend.config.schema import Config
from benchmarks.pace import at_least
from benchmarks.run import Result
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.episode import EpisodeResult, play
from cryptosentinel.llm.cassette.engine import Cassette, record
from cryptosentinel.llm.engine import Engine
from cryptosentinel.scheduler import run_all
from cryptosentinel.team import Team
from simulator.backtest.run import BacktestRun, Window
from simulator.synthetic.config import SyntheticConfig
from simulator.synthetic.generator import generate
from tests.standard_limits import guard_limits

REPETITIONS = 5
LEAST_DECISIONS = 500.0  # a second
STEPS = 100


def facts(episode: EpisodeResult) -> tuple[object, ...]:
    """Everything of an episode, as values that can be compared."""
    return (episode.result.to_dict(), episode.decisions, episode.liquidated_at, episode.ledger)


def run() -> list[Result]:
    """`engine.cassette` in decisions per second."""
    market = generate(SyntheticConfig(bars=600, seed=2, symbols=("AAAUSDT", "BBBUSDT")))
    loaded = scripted_team(Config().team)

    def episode(engine: Engine) -> EpisodeResult:
        team = Team(loaded.team.codec, engine.policy_version, loaded.team.settings)
        game = BacktestRun(market, Window(150, 150 + 4 * STEPS, 4))
        return run_all([play(team, game, guard_limits(), 1)], engine)[0]

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        recorder = record(loaded.engine, folder, loaded.team.codec, ROLES, {})
        recorded = episode(recorder)
        recorder.close()
        rates: list[float] = []
        for _ in range(REPETITIONS + 1):
            cassette = Cassette(folder)
            start = time.process_time()
            played = episode(cassette)
            rates.append(len(played.decisions) / (time.process_time() - start))
            if facts(played) != facts(recorded):
                raise RuntimeError("engine.cassette: the run that was played differs from the one that was recorded")
    if len(recorded.decisions) != 2 * STEPS or not recorded.result.trades:
        count = len(recorded.decisions)
        raise RuntimeError(f"engine.cassette: {count} decisions and {len(recorded.result.trades)} trades; expected all")
    rate = statistics.median(rates[1:])  # the first run warms up
    return [at_least("engine.cassette", rate, "decisions/s", LEAST_DECISIONS)]
