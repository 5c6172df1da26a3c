"""How far a setting walks: from `--set training.clip_high=0.3` to the line of the clip."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from backend.config.load import load_config
from backend.config.training import TrainingConfig
from backend.training.chosen_recipe import recipe_of

ROOT = Path(__file__).resolve().parents[3]
# Declared, given to the recipe, handed to the formula, used.
WALK = {
    "backend/config/training.py",
    "backend/training/chosen_recipe.py",
    "backend/training/algorithm/recipes.py",
    "backend/training/algorithm/objective.py",
}


def names_in(path: Path) -> set[str]:
    """The names that a file's code reads, gives or declares."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        for attribute in ("id", "attr", "arg"):
            name = getattr(node, attribute, None)
            found |= {name} if isinstance(name, str) else set()
    return found


def test_no_other_file_contains_the_name_of_the_clip() -> None:
    product = [
        path for part in ("backend", "cryptosentinel", "simulator", "ui") for path in (ROOT / part).rglob("*.py")
    ]
    containing = (path for path in product if "clip_high" in path.read_text(encoding="utf-8"))
    assert {path.relative_to(ROOT).as_posix() for path in containing if "clip_high" in names_in(path)} == WALK
    page = (ROOT / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8")
    assert all(f"`{path}" in page for path in (*WALK, "backend/config/load.py", "backend/cli/options.py"))


def test_what_is_set_arrives_at_the_clip() -> None:
    assert recipe_of(load_config("quick", ["training.clip_high=0.3"]).training).clip_high == 0.3


def test_a_section_is_validated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from backend.runs.requests import TrainRequest

    checked: list[TrainingConfig] = []
    whole = TrainingConfig._problems

    def counted(self: TrainingConfig) -> object:
        checked.append(self)
        return whole(self)

    monkeypatch.setattr(TrainingConfig, "_problems", counted)
    config = TrainRequest(config="quick", overrides=("training.clip_high=0.3",), timeframe="1h").settings()
    assert len(checked) == 1 and config.training.clip_high == 0.3 and config.market.timeframe == "1h"
