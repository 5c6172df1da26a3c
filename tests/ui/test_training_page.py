"""The page of trainings: what it starts, what it shows of one, and how it goes on with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.config.load import load_config
from backend.jobs.files import STATE, JobState, write_part
from backend.jobs.queue import JobQueue
from backend.store.records import QueryRecord, RewardRecord, RolloutRecord, RunRecord
from backend.store.store import Store
from tests.stored_runs import add_demo_run
from tests.ui.conftest import LIVES
from tests.ui.page_client import address, field, look_at, open_page, words

_PAGE = "views/training.py"


def add_training(store: Store, run: str) -> None:
    """A training after one step of one group of four rollouts."""
    store.add_run(RunRecord(run, "train", 1, "hash", 1_700_000_000_000, {"config": {"training": {"stage2_steps": 4}}}))
    store.put(QueryRecord(run, 0, 0, 2, ("AAAUSDT",), 40, 1_577_836_800_000, 9))
    rollouts = [
        RolloutRecord(run, 0, 0, number, number, number != 2, 0.5 + number / 10,
                      {"market_analyst": number, "risk_analyst": 1}, {"net_return": number / 100, "orders": 1.0})
        for number in range(4)
    ]  # fmt: skip
    store.put(*rollouts)
    rewards = [
        RewardRecord(
            run, 0, 0, number, role, ordinal, 0.25 + number / 10, {"format": 1.0, "outcome": 0.5}, number - 1.5
        )
        for number in range(4)
        for role, calls in (("manager", 1), ("market_analyst", number))
        for ordinal in range(calls)
    ]
    store.put(*rewards)
    store.add_metrics(run, 1, {"manager/reward/mean": 0.5, "manager/reward/format_share": 0.2, "manager/entropy": 0.4,
                               "market_analyst/alignment/target": 2.0})  # fmt: skip


def test_a_training_is_handed_over_as_the_form_says(here: Path, queue: JobQueue) -> None:
    app = open_page(_PAGE)
    assert not app.exception and "No training is stored yet" in words(app)
    field(app.number_input, "Steps of stage 2").set_value(3)
    field(app.number_input, "Steps of stage 1").set_value(2)
    field(app.text_area, "Other settings").set_value("training.kl=0.01\n").run()
    [command] = [one.value for one in app.code]
    assert command.startswith("cryptosentinel train --config=quick"), "it can be copied"
    field(app.button, "Start").click().run()
    assert not app.exception and not app.error
    [job] = queue.jobs()
    overrides = [word.removeprefix("--set=") for word in job.request.command if word.startswith("--set=")]
    training = load_config("quick", overrides).training
    assert (training.stage1_steps, training.stage2_steps, training.kl) == (2, 3, 0.01)
    assert f"--store={here / 'store'}" in job.request.command
    assert address(app, "job") == [job.name] and "waits for its turn" in words(app)


@pytest.mark.parametrize(
    ("label", "value", "sentence"),
    [("Steps of stage", 0, "nothing to train"), ("Rollouts a window", 1, "rollouts_per_query")],
)
def test_what_cannot_be_trained_is_refused_in_a_sentence(
    here: Path, queue: JobQueue, label: str, value: int, sentence: str
) -> None:
    app = open_page(_PAGE)
    for one in app.number_input:
        if label in one.label:
            one.set_value(value)
    field(app.button, "Start").click().run()
    assert not app.exception and sentence in app.error[0].value.replace("\\", "") and not queue.jobs()


def test_the_rollouts_of_a_step_are_shown_side_by_side(here: Path, queue: JobQueue) -> None:
    with Store.open(here / "store") as store:
        add_training(store, "train-1")
        app = open_page(_PAGE)
        assert not app.exception and "Step 1 is done" in words(app)
        assert not app.query_params, "to open a page is one step of the browser's history"
        look_at(app, "What was paid for")
        assert "**Paid for format**" in words(app)
        look_at(app, "Rollouts")
        assert not app.exception and not app.error
        side = app.dataframe[0].value
        assert list(side["Rollout"]) == [f"window 0, rollout {number}" for number in range(1, 5)]
        assert list(side["DeepTraderManager"]) == ["0.25 (-1.50)", "0.35 (-0.50)", "0.45 (+0.50)", "0.55 (+1.50)"]
        assert side["MarketAnalyst"][3] == "; ".join(["0.55 (+1.50)"] * 3) and list(side["Valid"])[2] == "no"


def test_one_is_stopped_and_gone_on_with(here: Path, queue: JobQueue) -> None:
    app = open_page(_PAGE)
    field(app.button, "Start").click().run()
    [job] = queue.jobs()
    with Store.open(here / "store") as store:
        add_training(store, "train-1")
        write_part(job.path / STATE, JobState(LIVES, 5, "train-1", "M-GRPO", 1, 4))
        app = open_page(_PAGE, job=job.name)
        assert "Step 1 is done" in words(app) and "**train-1** runs" in words(app)
        assert job.name not in words(app).replace("\\", ""), "one id for the reader, and not two that look alike"
        assert app.expander[0].label == "Start a training", "above all that is stored"
        store.finish_run("train-1", "interrupted")
    write_part(job.path / STATE, JobState(LIVES, 5, "train-1", "M-GRPO", 1, 4, "", 130, 9))
    app.run()
    assert not app.exception and "was cancelled" in words(app) and "This run is interrupted" in words(app)
    field(app.button, "Resume").click().run()
    [again, _] = queue.jobs()
    assert again.request.command[:2] == ("train", "--resume=train-1")


def test_a_training_of_the_terminal_is_shown_and_gone_on_with(here: Path, queue: JobQueue) -> None:
    with Store.open(here / "store") as store:
        add_demo_run(store, "demo-1")
        add_training(store, "train-2")
        store.finish_run("train-2", "interrupted")
    app = open_page(_PAGE, run="train-2")
    assert not app.exception and address(app, "run") == ["train-2"]
    field(app.button, "Resume").click().run()
    [job] = queue.jobs()
    assert job.request.command[:2] == ("train", "--resume=train-2")
    app = open_page(_PAGE, run="nothing")
    assert not app.exception and "asks for a training that is not here: nothing" in words(app).replace("\\", "")
    app.selectbox(key="training").set_value("demo-1").run()
    assert not app.exception and "Training worked" in words(app)
