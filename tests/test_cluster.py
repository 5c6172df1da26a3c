"""The simulation of a cluster gives the known answers of simple ones."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.cluster import SMALL_NANO, Cluster, Costs, simulate
from benchmarks.cluster_costs import RealRun, predicted, with_real_run

PLAIN = Costs(shard=3.0, train=2.0)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 1))
def test_without_tail_and_transport_a_step_is_its_rounds_and_the_learning(
    workers: int, shards: int, stale: int
) -> None:
    rounds = 3.0 * ceil(shards / workers)
    step = rounds + 2.0 if not stale else max(rounds, 2.0)
    outcome = simulate(Cluster(workers, shards, staleness=stale), PLAIN, steps=400)
    assert outcome.steps_per_hour == pytest.approx(3600.0 / step, rel=0.01)
    assert outcome.repeated == 0 and outcome.busy["trainers"] == pytest.approx(2.0 / step, rel=0.01)


def test_what_must_pass_one_place_adds_up() -> None:
    """The link and the database serve one at a time, however many workers there are."""
    link = replace(PLAIN, shard_bytes=100.0, weight_bytes=10.0, link=100.0)
    assert simulate(Cluster(1, 1, trainers=1), link).steps_per_hour == pytest.approx(3600.0 / (0.1 + 3 + 1 + 1 + 2))
    database = replace(PLAIN, write=1.0, read=0.5)
    outcome = simulate(Cluster(64, 64), database)
    assert outcome.steps_per_hour == pytest.approx(3600.0 / (3 + 64 + 4 * 0.5 + 2))
    assert outcome.bottleneck == "database"
    asking = replace(PLAIN, write=1.0, read=0.135, ask=0.01, pause=1.0)  # of 47, 46 wait, and the trainers: a half
    assert simulate(Cluster(47, 1), asking).steps_per_hour == pytest.approx(3600.0 / (3 + 2 + 4 * 0.135 / 0.53 + 2))
    with pytest.raises(ValueError, match=r"597 workers and 4 trainers ask the database for 6.0 s a second while"):
        simulate(Cluster(597, 1), asking)


def test_weights_go_to_a_machine_and_shards_are_read_as_they_come() -> None:
    weights = replace(PLAIN, weight_bytes=100.0, link=100.0)
    for per_machine, arrived in ((1, 8), (4, 2), (8, 1)):
        outcome = simulate(Cluster(8, 8, per_machine=per_machine), weights)
        assert outcome.steps_per_hour == pytest.approx(3600.0 / (arrived + 3 + 2))
    tokens = replace(PLAIN, shard_bytes=100.0, link=100.0)  # a second to the store and one to the trainers
    assert simulate(Cluster(1, 5), tokens).steps_per_hour == pytest.approx(3600.0 / (5 * (3 + 1) + 1 + 2))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 4))
def test_processes_of_one_machine_share_its_cores(workers: int, rounds: int, cores: int) -> None:
    """Shards in whole rounds of the cores: then nothing but the cores' number counts."""
    busy = min(workers, cores)
    outcome = simulate(Cluster(workers, rounds * busy, cores=cores), PLAIN)
    learning = 2.0 * ceil(4 / cores)
    assert outcome.steps_per_hour == pytest.approx(3600.0 / (3.0 * rounds + learning))
    loading = simulate(Cluster(workers, rounds * busy, cores=cores), replace(PLAIN, load=1.0))
    assert loading.steps_per_hour == pytest.approx(outcome.steps_per_hour, rel=1.0 * workers / (rounds + 1))
    assert loading.steps_per_hour < outcome.steps_per_hour


def test_who_leads_and_what_is_waited_are_in_every_step_and_busy_cores_slow_each_other() -> None:
    outcome = simulate(Cluster(1, 4), replace(PLAIN, lead=0.5, notice=0.25))
    assert outcome.steps_per_hour == pytest.approx(3600.0 / (4 * 3 + 2 + 0.5 + 0.25))
    crowded = replace(PLAIN, train=0.0, crowded=1.5)
    assert simulate(Cluster(1, 4, cores=2), crowded).steps_per_hour == pytest.approx(3600.0 / (4 * 3))
    # The first of each pair begins beside an idle core.
    assert simulate(Cluster(2, 2, cores=2), crowded).steps_per_hour == pytest.approx(3600.0 / (3 * 1.5))


@settings(max_examples=20, deadline=None)
@given(st.floats(20.0, 60.0), st.floats(0.1, 8.0), st.floats(0.0, 4.0), st.integers(2, 8))
def test_a_run_with_one_worker_is_met_exactly_by_the_costs_that_are_taken_from_it(
    step: float, trainer: float, store: float, shards: int
) -> None:
    alone = RealRun(1, step, rollout_seconds=shards * 1.1, trainer_seconds=trainer, store_seconds=store)
    costs = with_real_run(Costs(shard=1.0, train=0.1, load=0.05), alone, shards, cores=2)
    assert predicted(costs, 1, shards, 2) == pytest.approx(alone.steps_per_hour, rel=1e-3)
    assert costs.lead == pytest.approx(shards * 0.1 - 0.05)


def test_the_dead_are_replaced_and_their_shards_done_again() -> None:
    quiet = simulate(Cluster(4, 16), PLAIN)
    losing = simulate(Cluster(4, 16, lifetime=100.0, silent=20.0, restart=60.0), PLAIN)
    assert losing.repeated > 0 and losing.steps_per_hour < quiet.steps_per_hour
    alone = simulate(Cluster(1, 1, trainers=1, lifetime=1e9), PLAIN)
    assert alone.repeated == 0 and alone.steps_per_hour == pytest.approx(3600.0 / 5.0)


def test_a_tail_makes_all_wait_for_the_slowest() -> None:
    outcomes = [simulate(Cluster(32, 32), replace(PLAIN, tail=tail)).steps_per_hour for tail in (0.0, 0.3, 1.0)]
    assert outcomes[0] > outcomes[1] > outcomes[2]
    fine = simulate(Cluster(32, 32 * 8), replace(PLAIN, shard=3.0 / 8, tail=0.3)).steps_per_hour
    assert fine > outcomes[1], "smaller shards even out"


def test_a_second_worker_brings_what_was_measured() -> None:
    """135.9 and 226.8 rollouts a second, of 256 in two shards, with no learning."""
    rates = [simulate(Cluster(workers, 2), replace(SMALL_NANO, train=0.0)).steps_per_hour for workers in (1, 2)]
    assert rates[1] / rates[0] == pytest.approx(226.8 / 135.9, rel=0.05)
    assert 256 * rates[0] / 3600 == pytest.approx(135.9, rel=0.2)
