"""The check of a GPU keeps its books: each part's result is on the disk as it ends, whatever the others do."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from scripts import gpu_check
from scripts.gpu_check import NEEDS_A_GPU, Part, main


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_rehearsal_says_what_needs_a_gpu_and_appends(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    for _ in range(2):
        assert main(["--rehearse", "--out", str(out), "mfu"]) == 0
    assert [(one["part"], one["status"], one["rehearsal"]) for one in lines(out)] == 2 * [("mfu", NEEDS_A_GPU, True)]


def test_a_part_that_fails_or_runs_over_does_not_stop_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = {
        "broken": "raise SystemExit('no kernel')",
        "endless": "import time; time.sleep(60)",
        "lingering": f"print({gpu_check._RESULT + json.dumps({'status': 'ok', 'value': 2})!r}, flush=True); "
        "import time; time.sleep(60)",
        "good": f"print({gpu_check._RESULT + json.dumps({'status': 'ok', 'value': 3})!r})",
    }
    parts = {name: Part(name, 2 if name in ("endless", "lingering") else 30, lambda rehearse: {}) for name in code}
    monkeypatch.setattr(gpu_check, "PARTS", parts)
    popen = gpu_check.subprocess.Popen

    def started(command: list[str], **how: Any) -> Any:
        return popen([sys.executable, "-c", code[command[command.index("--within") + 1]]], **how)

    monkeypatch.setattr(gpu_check.subprocess, "Popen", started)
    began = time.monotonic()
    assert main(["--out", str(tmp_path / "out.jsonl")]) == 1
    assert time.monotonic() - began < 40
    broken, endless, lingering, good = lines(tmp_path / "out.jsonl")
    assert broken["status"] == "failed" and "no kernel" in broken["output"]
    assert (endless["status"], endless["limit_s"]) == ("ran over", 2)
    assert (lingering["status"], lingering["value"]) == ("ok", 2), "it had its result and was slow to end"
    assert (good["status"], good["value"]) == ("ok", 3)
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_what_a_part_lacks_is_its_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(gpu_check.SMOLLM2, raising=False)

    def lacks(rehearse: bool) -> dict[str, Any]:
        return {"folder": str(gpu_check._smollm2())}

    assert gpu_check._within(Part("x", 1, lacks, on_a_cpu=True), rehearse=True) == 0
    assert f"needs {gpu_check.SMOLLM2}" in capsys.readouterr().out
