"""The runner of the benchmarks."""

from __future__ import annotations

import importlib
import json
import re
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from backend.models.shape import Shape, qwen3_config
from backend.policies.hardware import Hardware
from backend.policies.role_policies import RolePolicies
from benchmarks import bench_demo_speedrun as speedrun
from benchmarks import run as runner
from benchmarks.bench_training_mfu import training_flops
from benchmarks.run import Result
from cryptosentinel.llm.nano import nano_config, new_nano
from tests.standard_settings import lora_settings


def result(name: str, value: float) -> Result:
    return Result(name=name, value=value, unit="s", against="peer", ratio=None, target="<= 1", met=value <= 1)


def test_results_replace_their_namesakes_only(tmp_path: Path) -> None:
    path = tmp_path / "results" / "latest.json"
    runner.write([result("b", 1.0), result("a", 1.0)], path)
    runner.write([result("b", 2.0)], path)
    stored = json.loads(path.read_text())
    assert [(entry["name"], entry["value"], entry["met"]) for entry in stored] == [("a", 1.0, True), ("b", 2.0, False)]
    for entry in stored:
        assert entry["machine"] == runner.machine()
        assert date.fromisoformat(entry["date"]) <= date.today() and re.fullmatch(
            r"([0-9a-f]{7,}\+?)?", entry["commit"]
        )


def test_every_stored_result_says_when_and_of_which_commit_it_is() -> None:
    stored = json.loads(runner.RESULTS.read_text())
    assert [one["name"] for one in stored if not (one.get("date") and one.get("commit") and one.get("machine"))] == []


@given(st.floats(0.1, 10.0), st.floats(0.01, 100.0), st.floats(0.01, 100.0))
def test_a_limit_of_time_is_as_hard_on_a_slow_machine_as_on_a_fast_one(
    slower: float, limit: float, taken: float
) -> None:
    """Work that takes `taken` on the machine of the limits takes `slower` times as long on this one, and so does the
    piece of work that says how fast it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "pace", lambda: slower)
        time, rate = (
            runner.at_most("a", taken * slower, "s a step", limit),
            runner.at_least("b", 1 / (taken * slower), "/s", 1 / limit),
        )
    assert time["ratio"] == pytest.approx(taken / limit) and rate["ratio"] == pytest.approx(limit / taken)
    assert time["ratio"] is not None and rate["ratio"] is not None
    assert time["met"] == (time["ratio"] <= 1.0) and rate["met"] == (rate["ratio"] >= 1.0)
    assert f"{limit:g} s at pace 1; this machine's is {slower:.2f}" in time["against"]


def test_the_pace_is_the_time_of_a_piece_of_work_beside_that_of_the_machine_of_the_limits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = {
        runner._interpreter: 3.0 * runner.REFERENCE["interpreter"],
        runner._arrays: 12.0 * runner.REFERENCE["arrays"],
    }
    monkeypatch.setattr(runner, "_seconds", lambda work: taken[work])
    runner.pace.cache_clear()
    try:
        assert runner.pace() == pytest.approx(6.0)
    finally:
        runner.pace.cache_clear()
    assert runner._interpreter() > 0 and np.isfinite(runner._arrays())


def test_what_takes_long_runs_only_when_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = SimpleNamespace(BY_NAME_ONLY=True, run=lambda: [result("slow", 1.0)])
    quick = SimpleNamespace(run=lambda: [result("quick", 1.0)])
    monkeypatch.setattr(runner, "benchmarks", lambda: {"quick": "bench_quick", "slow": "bench_slow"})
    monkeypatch.setattr(
        importlib, "import_module", lambda name: {"benchmarks.bench_slow": slow, "benchmarks.bench_quick": quick}[name]
    )
    written: list[list[str]] = []
    monkeypatch.setattr(runner, "write", lambda results: written.append([one["name"] for one in results]))
    assert runner.main([]) == 0
    assert "make bench ONLY=slow" in capsys.readouterr().out
    assert runner.main(["slow"]) == 0
    assert written == [["quick"], ["slow"]]


def test_the_speedrun_takes_the_newest_team_within_the_time() -> None:
    ready = {1: 70.0, 2: 89.9, 3: 90.5, 4: 400.0}
    assert [speedrun.newest(ready, limit) for limit in (60.0, 90.0, 150.0, 400.0)] == [None, 2, 3, 4]
    config = speedrun.config_of(9301)
    assert config.market.seed == config.training.seed == 9301
    shown = speedrun.row("90", 0.7, [0.5, 0.9, 0.7, 0.8, 0.6])
    assert shown["value"] == pytest.approx(70.0) and shown["ratio"] == pytest.approx(1.0) and shown["met"]


RANK = 4
MODES: list[Literal["lora", "full"]] = ["lora", "full"]


def counted(layers: int, length: int, sampled: int, weights: Literal["lora", "full"]) -> int:
    """What torch counts of a conversation's passes forward and backward, with attention as plain products, and with
    adapters beside their layers, as they are in bfloat16."""
    config = nano_config(300, hidden_size=32, layers=layers, heads=6, kv_heads=2, head_dim=8, intermediate_size=80)
    config._attn_implementation = "eager"
    policies = RolePolicies(
        new_nano(0, config),
        ["manager"],
        weights,
        lora_settings(lora_rank=RANK),
        hardware=Hardware(precision="bfloat16"),
    )
    # One token more than is read: the last one is only a target.
    ids = torch.randint(0, 300, (1, length + 1), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(length + 1)[None] > length - sampled
    with FlopCounterMode(display=False) as counter:
        policies.logps("manager", ids, mask)[0].sum().backward()
    return int(counter.get_total_flops())


def formula(layers: int, length: int, sampled: int, weights: Literal["lora", "full"]) -> float:
    """Ours, with the half of attention that a plain product computes in vain."""
    shape = Shape.of(
        nano_config(300, hidden_size=32, layers=layers, heads=6, kv_heads=2, head_dim=8, intermediate_size=80)
    )
    in_vain = 3 * shape.layers * 4 * shape.queries * length * length / 2
    return training_flops(shape, length, sampled, RANK, weights) + in_vain


@pytest.mark.parametrize("weights", MODES)
@pytest.mark.parametrize(("length", "sampled"), [(16, 16), (50, 7)])
def test_a_block_takes_what_torch_counts(length: int, sampled: int, weights: Literal["lora", "full"]) -> None:
    ours = formula(3, length, sampled, weights) - formula(2, length, sampled, weights)
    theirs = counted(3, length, sampled, weights) - counted(2, length, sampled, weights)
    assert ours == theirs


def test_a_whole_model_takes_what_torch_counts() -> None:
    # With a frozen base the first block's input needs no gradient, so there the formula is a little above.
    assert formula(2, 40, 9, "full") == counted(2, 40, 9, "full")
    assert 1.0 <= formula(2, 40, 9, "lora") / counted(2, 40, 9, "lora") < 1.15


def test_a_frozen_base_saves_a_third() -> None:
    shape = Shape.of(qwen3_config("Qwen3-0.6B"))
    lora, full = (training_flops(shape, 2048, 2048, 16, weights) for weights in MODES)
    assert 0.65 < lora / full < 0.8
    # 6 N D of the whole model, and a third more for attention at this length.
    assert full == pytest.approx(6 * shape.parameters * 2048, rel=0.4)
