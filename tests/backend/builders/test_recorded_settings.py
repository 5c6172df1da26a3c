"""The settings of a recorded team, as an earlier version wrote them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from backend.builders.loaded_team import scripted_team
from backend.builders.recorded_team import replayed_team
from backend.config.schema import TeamConfig
from cryptosentinel.llm.cassette.engine import record


def recorded(folder: Path, *absent: str) -> None:
    """A recording without a call, whose team has no such settings."""
    loaded = scripted_team(TeamConfig(horizon_bars=9, memory=2))
    team = {key: value for key, value in asdict(loaded.team.settings).items() if key not in absent}
    settings = {"name": "earlier", "team": team, "budget": asdict(loaded.budget)}
    record(loaded.engine, folder, loaded.team.codec, ["manager"], settings, None).close()


def test_a_setting_that_was_not_there_yet_has_its_default(tmp_path: Path) -> None:
    recorded(tmp_path / "new")
    recorded(tmp_path / "old", "context_tokens", "retries")
    new, old = (replayed_team(tmp_path / name).team.settings for name in ("new", "old"))
    assert old == new and (old.horizon_bars, old.memory, old.retries) == (9, 2, 0)


def test_calls_from_before_headlines_were_masked_are_asked_as_they_were(tmp_path: Path) -> None:
    recorded(tmp_path / "new")
    recorded(tmp_path / "old", "headlines")
    new, old = (replayed_team(tmp_path / name).team.settings for name in ("new", "old"))
    assert (new.headlines, old.headlines) == ("masked", "shown")
