"""Real processes around a real store: killed with SIGKILL at any moment, they end where one loop does."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from backend.builders.market import load_market
from backend.cli import serve
from backend.cli.main import app
from backend.cli.train import Launch, SeveralProcesses
from backend.distributed.coordinator import coordinator_state
from backend.distributed.local_launcher import run_processes
from backend.runs.train import ThisProcess
from backend.store.run_record import recorded_run
from backend.store.store import Store
from cryptosentinel.agents.registry import ROLES
from simulator.data.archive import write_market
from simulator.errors import Interrupted, RunFailed, UserError
from tests.backend.distributed.disturber import Disturber
from tests.backend.distributed.process_threads import begin_run, last_parameters
from tests.small_world import RUN, one_process_trainer, small_config, small_market


@pytest.mark.slow
@pytest.mark.parametrize(("kills", "steps"), [(5, 6), (100, 40)])  # steps enough that the run outlives the kills
def test_processes_that_are_killed_end_where_one_loop_does(kills: int, steps: int, nano: Path, tmp_path: Path) -> None:
    write_market(small_market(), tmp_path / "market")
    config = small_config(base_model=str(nano), stage1_max_steps=1, stage2_steps=steps - 1, queries_per_step=4)
    data = config.market.model_copy(update={"data": str(tmp_path / "market")})
    config = config.model_copy(update={"market": data})
    market = load_market(config.market, config.costs)  # as the processes load it
    joint, apart = tmp_path / "joint", tmp_path / "apart"
    joint.mkdir()
    with Store.open("mem://") as store:
        begin_run(store, config)
        trainer = one_process_trainer(config, market, store, joint, nano)
        trainer.run()
    address = str(tmp_path / "store")
    with Store.open(address) as store:
        # Some in their first second, most in the middle of a step.
        killer = Disturber(store, lambda process: os.kill(process, signal.SIGKILL), 1, kills, (0.2, 3.0))
        with recorded_run(store, RUN, "train", 1, market.content_hash, config):
            run_processes(address, RUN, apart, 1, lambda step: None, killer.started)
        assert {one.step for one in store.published(RUN)} == set(range(steps + 1))
    print(killer)
    assert not killer.left, "the run was over before it was disturbed enough"
    assert killer.at_work >= 0.6 * kills, "too few were killed in the middle of a step"
    assert kills < 20 or set(killer.disturbed) == set(killer.alive), "some process was never killed"
    for role in ROLES:
        mine, theirs = last_parameters(apart / RUN, role), last_parameters(joint, role)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs), f"{role} has become another"
    assert coordinator_state(apart / RUN).best_score == trainer.state.best_score


@pytest.mark.slow
def test_a_process_that_fails_ends_the_run_with_its_last_message(nano: Path, tmp_path: Path) -> None:
    config = small_config(base_model=str(tmp_path / "nowhere"))
    address = str(tmp_path / "store")
    with Store.open(address) as store:
        with (
            pytest.raises(RunFailed, match=r"ended with code 2: .*nowhere"),
            recorded_run(store, RUN, "train", 1, "hash", config),
        ):
            run_processes(address, RUN, tmp_path / "runs", 1, lambda step: None)
        assert store.run(RUN).status == "failed"


def test_a_run_goes_on_as_it_began(tmp_path: Path) -> None:
    (tmp_path / "a" / "checkpoints").mkdir(parents=True)
    (tmp_path / "b" / "services").mkdir(parents=True)
    apart = SeveralProcesses(Launch.PROCESSES, 1, "runs/store", tmp_path)
    with pytest.raises(UserError, match="was trained in one process: go on without --launch"):
        apart.check_resumed(tmp_path / "a")
    with pytest.raises(UserError, match="in several processes: go on with --launch processes"):
        ThisProcess().check_resumed(tmp_path / "b")
    ThisProcess().check_resumed(tmp_path / "a")
    apart.check_resumed(tmp_path / "b")


def test_a_store_in_memory_cannot_be_shared() -> None:
    result = CliRunner().invoke(app, ["train", "--config", "quick", "--launch", "processes", "--store", "mem://"])
    assert isinstance(result.exception, UserError) and "mem:// is in this process alone" in str(result.exception)


def test_sigterm_ends_a_service_as_ctrl_c_does(capsys: pytest.CaptureFixture[str]) -> None:
    former = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(typer.Exit) as ended, serve._service(RUN, "rollout-0", None):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
    finally:
        signal.signal(signal.SIGTERM, former)
    assert ended.value.exit_code == 130
    assert json.loads(capsys.readouterr().err)["message"].startswith("stopped by a signal")


def test_an_interrupted_run_says_how_it_goes_on(tmp_path: Path) -> None:
    how = " --launch processes --workers 2"
    with Store.open("mem://") as store:
        with (
            pytest.raises(Interrupted, match=rf"go on with: cryptosentinel train --resume {RUN}{how}$"),
            recorded_run(store, RUN, "train", 1, "hash", small_config(), how),
        ):
            raise KeyboardInterrupt
        assert store.run(RUN).status == "interrupted"
