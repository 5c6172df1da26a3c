"""A team without some roles, trained apart: a trainer for each role that is there, and the weights of one loop."""

from __future__ import annotations

from pathlib import Path

import torch

from backend.config.load import config_from_dict
from backend.store.store import Store
from tests.backend.distributed.process_threads import begin_run, last_parameters, processes, run_in_threads
from tests.small_world import one_process_trainer, small_market, smaller_config

TEAM = ("manager", "trader")


def test_two_roles_apart_become_what_they_become_in_one_loop(nano: Path, tmp_path: Path) -> None:
    options = {"base_model": str(nano), "stage1_max_steps": 1, "stage2_steps": 1, "validation_every": 2}
    document = smaller_config(**options).to_dict()
    document["team"]["roles"] = TEAM[1:]
    config = config_from_dict(document)
    with Store.open("mem://") as store:
        begin_run(store, config)
        trainer = one_process_trainer(config, small_market(), store, tmp_path / "joint", nano)
        trainer.run()
    with Store.open("mem://") as store:
        begin_run(store, config)
        all_lives = processes(config, nano, tmp_path / "apart")
        assert set(all_lives) == {"rollout-0", "trainer-manager", "trainer-trader"}
        run_in_threads(store, all_lives)
    for role in TEAM:
        joint, apart = last_parameters(tmp_path / "joint", role), last_parameters(tmp_path / "apart", role)
        assert joint.keys() == apart.keys() and all(torch.equal(joint[name], apart[name]) for name in joint)
    assert not (tmp_path / "apart" / "services" / "risk_analyst").exists()
