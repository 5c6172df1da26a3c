"""Weights that are published while a step is rolled out: a worker takes them in the middle of a conversation, and each
token's log-prob is the one that its recorded version gives it."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest
import torch

from backend.distributed.published_weights import PublishedWeights
from backend.distributed.step_records import read_step_data
from backend.policies.build import role_policies
from backend.policies.role_policies import RolePolicies
from backend.store.store import Store
from backend.training.algorithm.trajectory import Trajectory
from backend.training.curriculum.curriculum import curriculum_of
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.llm.local import decoding
from tests.backend.distributed.process_threads import begin_run, processes, run_in_threads
from tests.small_world import RUN, small_config

STEPS, STALENESS = 4, 1


@pytest.mark.slow
def test_old_log_probs_are_those_of_the_recorded_version_token_by_token(
    nano: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.distributed.rollout_worker._NEWER_SECONDS", 0.0)
    monkeypatch.setattr(decoding, "_RENEWED_EVERY", 1)
    asked: Counter[int] = Counter()
    load_newer = PublishedWeights.load_newer

    def late(weights: PublishedWeights, step: int) -> bool:
        """As ever, but at its 25th question in a step a worker waits for weights that come only then."""
        asked[step] += 1
        if asked[step] < 25 or step == 0:
            return False
        until = time.monotonic() + 60
        while asked[step] == 25 and len(weights._store.published(RUN, step)) < len(ROLES):
            assert time.monotonic() < until, "the trainers publish nothing"
            time.sleep(0.02)
        return load_newer(weights, step)

    monkeypatch.setattr(PublishedWeights, "load_newer", late)
    # A rate at which the versions are far from each other in what they would have said.
    config = small_config(
        base_model=str(nano), stage1_max_steps=1, stage2_steps=STEPS - 1, staleness=STALENESS, newest_weights=True,
        learning_rate=dict.fromkeys(ROLES, 2e-2), shards=1,
    )  # fmt: skip
    mixed, gaps, foreign = 0, list[float](), list[float]()
    with Store.open(tmp_path / "store") as store:
        begin_run(store, config)
        run_in_threads(store, processes(config, nano, tmp_path / "run", 1))
        policies, _ = role_policies(nano, config.training)
        files = {(one.role, one.version): tmp_path / "run" / one.path for one in store.published(RUN)}
        steps = [(one.role, one.version, one.step) for one in store.published(RUN)]
        for step in range(STEPS):
            for role in ROLES:
                data = read_step_data(store, RUN, step, role, config.training, curriculum_of(config.training))
                for call in {id(call): call for group in data.everyone for one in group for call in one.subs}.values():
                    mixed += len(call.versions) > 1
                    for version in call.all_versions:
                        allowed = range(step - STALENESS, step + 1)
                        assert any((role, version, number) in steps for number in allowed), "older than it may be"
                        policies.load_files({role: files[role, version]})
                        ours = torch.tensor([name == version for name in call.token_versions()])
                        theirs = torch.from_numpy(call.mask) & ~ours
                        found = _gaps(policies, call, config.training.temperature)
                        gaps += found[ours].tolist()
                        foreign += found[theirs].tolist()
    assert mixed > 0, "no conversation has seen newer weights"
    assert len(gaps) > 500 and max(gaps) < 2e-4
    assert max(foreign) > 0.01, "another version would have done as well: nothing is tested"


def _gaps(policies: RolePolicies, call: Trajectory, temperature: float) -> torch.Tensor:
    """|log-prob of the present policy - recorded log-prob| of each token (L,)."""
    ids, mask = torch.from_numpy(call.ids)[None].long(), torch.from_numpy(call.mask)[None]
    with torch.no_grad():
        logps, _ = policies.logps(call.role, ids, mask, temperature)
    return (logps[0] - torch.from_numpy(call.sampled_logps)).abs()
