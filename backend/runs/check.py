"""What `cryptosentinel check` can drive beside single strategies: teams."""

from __future__ import annotations

from backend.builders.teams import LoadedTeam
from cryptosentinel.episode import play
from cryptosentinel.guard.guard import GuardLimits
from cryptosentinel.llm.local.engine import LocalEngine
from cryptosentinel.scheduler import run_all
from simulator.backtest.run import BacktestRun
from simulator.checks.lookahead import Drive


def team_drive(loaded: LoadedTeam, limits: GuardLimits, seed: int) -> Drive:
    """Runs of a team as a backtest plays them, all sampled with the same seed."""

    def drive(run: BacktestRun) -> None:
        if isinstance(loaded.engine, LocalEngine):
            # What an earlier run has left in the caches may change the last bits of the logits.
            loaded.engine.forget()
        run_all([play(loaded.team, run, limits, seed)], loaded.engine)

    return drive
