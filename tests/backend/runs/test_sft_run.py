"""`sft` as a run of the store: recorded once, whatever interrupts it and however often the command is repeated."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from backend.runs import train
from backend.runs.requests import SftRequest
from backend.runs.train import SFT, fine_tune_roles
from backend.store.store import Store
from backend.training.sft_job import SCORES, SftResult
from simulator.errors import Interrupted

FEW = ("market.bars=900", "market.coins=1")


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Whether the work itself, which is not done here, is interrupted."""
    ending = {"interrupted": False}

    def work(config: Any, market: Any, sources: Any, folder: Path, report: Any) -> SftResult:
        folder.mkdir(exist_ok=True)
        if ending["interrupted"]:
            raise KeyboardInterrupt
        (folder / SCORES).write_text("{}")
        return SftResult(folder, {"counts": {}}, {"trader": {"before": 0.5}}, {})

    monkeypatch.setattr(train, "run_sft", work)
    return ending


def test_a_fine_tuning_is_one_run_until_it_is_begun_anew(tmp_path: Path, ending: dict[str, bool]) -> None:
    def states(request: SftRequest) -> list[str]:
        if ending["interrupted"]:
            with pytest.raises(Interrupted, match="the same command continues"):
                fine_tune_roles(request, store=tmp_path / "store")
        else:
            fine_tune_roles(request, store=tmp_path / "store")
        with Store.open(tmp_path / "store") as store:
            return sorted(record.status for record in store.runs() if record.kind == SFT)

    request = SftRequest(config="quick", overrides=FEW, folder=tmp_path / "team")
    ending["interrupted"] = True
    assert states(request) == states(request) == ["interrupted"]
    ending["interrupted"] = False
    assert states(request) == states(request) == ["finished"], "a repeated command reads what is there"
    assert states(SftRequest(config="quick", overrides=FEW, folder=tmp_path / "other")) == ["finished"] * 2
    other_settings = SftRequest(config="quick", overrides=(*FEW, "sft.steps=3"), folder=tmp_path / "third")
    assert states(other_settings) == ["finished"] * 3
    shutil.rmtree(tmp_path / "team")
    assert states(request) == ["finished"] * 4, "nothing of the former run is written over"
    with Store.open(tmp_path / "store") as store:
        results = [record.result for one in store.runs() for record in store.evaluations(one.run)]
    assert len(results) == 4 and all(one["scores"] == {"trader": {"before": 0.5}} for one in results)
