"""A training whose tokens, weights and checkpoints travel through a bucket ends where one process does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from backend.store.maintenance.object_copy import choose_bucket
from backend.store.sharing.bucket import BucketObjects
from backend.store.store import Store
from cryptosentinel.agents.registry import ROLES
from tests.backend.distributed.process_threads import (
    begin_by_hand,
    begin_run,
    last_parameters,
    processes_by_hand,
    run_in_threads,
)
from tests.backend.store.buckets import BUCKET, FolderClient
from tests.small_world import RUN, one_process_trainer, small_market, smaller_config


@pytest.mark.slow
def test_processes_whose_files_lie_in_a_bucket_end_where_one_does(
    nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = tmp_path / "served"
    (served / BUCKET).mkdir(parents=True)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "trader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a very secret key")
    monkeypatch.setattr(BucketObjects, "_connected", lambda objects: FolderClient(served))
    config = smaller_config(base_model=str(nano), stage1_max_steps=1, stage2_steps=2, shards=1)
    joint = tmp_path / "joint"
    joint.mkdir()
    with Store.open("mem://") as store:
        begin_run(store, config)
        one_process_trainer(config, small_market(), store, joint, nano).run()
    with Store.open(tmp_path / "store") as store:
        choose_bucket(store, f"s3://{BUCKET}/trainings")
        begin_by_hand(store, config)
        run_in_threads(store, processes_by_hand(config, tmp_path / "machines", monkeypatch))
        assert store.run(RUN).status == "finished"
        named = {file.checksum for file in store.files(RUN)} | {file.checksum for file in store.tensors(RUN)}
    assert named <= {path.name for path in (served / BUCKET / "trainings" / RUN).rglob("*")}
    assert not (tmp_path / "store" / "objects").exists()
    for role in ROLES:
        [folder] = (tmp_path / "machines" / role / RUN / "processes").glob(f"trainer-{role}")
        mine, theirs = last_parameters(folder, role), last_parameters(joint, role)
        assert all(torch.equal(mine[name], theirs[name]) for name in theirs), f"{role} has become another"
