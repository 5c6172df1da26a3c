"""Helpers: processes that take work off this one, and what comes of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator

import pytest
import torch

from backend.processes import ALONE, Helper, Workers, WorkReport, _received, _send, silent, started
from simulator.errors import RunFailed, UserError


def _doubled(number: int, report: WorkReport) -> tuple[int, int]:
    report("doubling", number, 10)
    return 2 * number, os.getpid()


def _refused(number: int, report: WorkReport) -> int:
    raise UserError(f"{number} cannot be used")


def _killed(number: int, report: WorkReport) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


class _Elsewhere:
    """A helper that is a thread of this process."""

    def do(self, work, task, report):  # type: ignore[no-untyped-def]  # generic in two ways
        return work(task, report)


def test_answers_come_in_the_order_of_the_tasks_whoever_gave_them() -> None:
    seen: list[tuple[str, int, int]] = []
    workers = Workers([_Elsewhere(), _Elsewhere()])
    answers = workers.each(_doubled, range(10), lambda *news: seen.append(news))
    assert [answer for answer, _ in answers] == [0, 2, 4, 6, 8, 10, 12, 14, 16, 18]
    assert sorted(seen) == [("doubling", number, 10) for number in range(10)]
    assert ALONE.each(_doubled, range(10)) == answers  # in one process all ids are the same


def test_each_process_works_at_the_same_time_and_this_one_in_its_own_thread() -> None:
    both = threading.Barrier(2, timeout=20)  # nobody passes it alone

    def met(helper: Helper | None, task: int) -> bool:
        both.wait()
        return (threading.current_thread() is threading.main_thread()) == (helper is None)

    assert Workers([_Elsewhere()]).share(met, range(6)) == [True] * 6


def test_the_first_failure_is_raised_and_nothing_new_is_begun() -> None:
    begun: list[int] = []

    def work(task: int, report: WorkReport) -> int:
        begun.append(task)
        return _refused(task, report)

    with pytest.raises(UserError, match="0 cannot be used"):
        ALONE.each(work, range(5))
    assert begun == [0]


@pytest.fixture(scope="module")
def pair() -> Iterator[Workers]:
    with started(2) as workers:
        yield workers


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.bfloat16])
def test_tensors_go_by_value(dtype: torch.dtype) -> None:
    ours, theirs = multiprocessing.Pipe()
    whole = torch.arange(12).reshape(3, 4).to(dtype)
    learnt = torch.nn.Parameter(torch.ones(2))
    _send(ours, ([whole, whole.T[1:]], learnt, "said"))
    (plain, part), parameter, said = _received(theirs)
    assert plain.dtype == dtype and torch.equal(plain, whole) and torch.equal(part, whole.T[1:]) and said == "said"
    assert isinstance(parameter, torch.nn.Parameter) and torch.equal(parameter, learnt)
    plain.zero_()  # it can be written to
    assert whole.any() and not whole.is_shared()


@pytest.mark.slow
def test_a_helper_is_a_process_of_its_own_that_says_what_it_does(pair: Workers) -> None:
    [helper] = pair.helpers
    seen: list[tuple[str, int, int]] = []
    doubled, process = helper.do(_doubled, 3, lambda *news: seen.append(news))
    assert (doubled, seen) == (6, [("doubling", 3, 10)])
    assert process != os.getpid()
    assert helper.do(_doubled, 4, silent) == (8, process)  # it is the same one


@pytest.mark.slow
def test_what_a_helper_raised_is_raised_here_and_it_goes_on(pair: Workers) -> None:
    [helper] = pair.helpers
    with pytest.raises(UserError, match="7 cannot be used"):
        helper.do(_refused, 7, silent)
    assert helper.do(_doubled, 1, silent)[0] == 2


@pytest.mark.slow
def test_the_death_of_a_helper_is_a_failure_in_words() -> None:
    with started(2) as workers, pytest.raises(RunFailed, match=r"signal 9.*--workers 1"):
        workers.helpers[0].do(_killed, 1, silent)
