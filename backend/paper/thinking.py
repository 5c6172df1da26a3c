"""Lets a team or a strategy think without being held up by it: a model that hangs, or an order to stop, ends the
decision at once.

It thinks in a thread of its own. When the time is over, or the kill switch is set, that thread is left behind: a
model's requests count as failed, so the conversations end without an answer, and the decision is *no change*. While it
is still busy with what was left, nothing further is asked of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, TypeVar

from backend.builders.strategies import NamedStrategy
from backend.config.plugins import describe_failure
from cryptosentinel.episode import TradingSession
from cryptosentinel.llm.engine import Completion, Engine, Request, failed_completion
from cryptosentinel.team import AgentTask
from simulator.backtest.run import fit
from simulator.errors import UserError
from simulator.exchange.exchange_records import AccountView, record_to_json
from simulator.exchange.orders import OrderRequest
from simulator.market.market import MarketView

_T = TypeVar("_T")
_LOOK_SECONDS = 0.02  # how often the reason to stop waiting is looked for
BUSY = "the model still thinks about an earlier decision"

WhyNot = Callable[[], str | None]  # why no answer is waited for any more; None: it is


def in_background(work: Callable[[], _T], name: str) -> Future[_T]:
    """Do `work` in a thread that the program's end does not wait for."""
    answer: Future[_T] = Future()

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001  # it is raised in the thread that waits
            answer.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return answer


class DeadlineRunner:
    """Runs work beside the session, one piece at a time. `why_not` is asked again and again meanwhile; `answered`
    counts the requests that got an answer since `begin`."""

    def __init__(self, why_not: WhyNot) -> None:
        self._why_not = why_not
        self._last: Future[Any] | None = None
        self.answered = 0
        self.cut_off = ""  # why, if an answer was not waited for since then

    def begin(self) -> None:
        """A new decision begins."""
        self.answered, self.cut_off = 0, ""

    def summary(self) -> dict[str, Any]:
        """For the journal: why the decision was cut off, if so, and after how many answers."""
        return {"cut_off": self.cut_off, "answered": self.answered}

    def run(self, task: AgentTask[_T], engine: Engine) -> _T:
        """Run `task` to its end with the answers of `engine`. Raises what either raises."""
        answers: Sequence[Completion] | None = None
        while True:
            try:
                requests = next(task) if answers is None else task.send(answers)
            except StopIteration as stop:
                result: _T = stop.value
                return result
            answers = self._answers(engine, requests)

    def ask(self, work: Callable[[], _T]) -> _T | None:
        """What `work` gives; None where it was not waited for, see `cut_off`. Raises what it raises."""
        if not self.cut_off and self._last is not None and not self._last.done():
            self.cut_off = BUSY
        self.cut_off = self.cut_off or self._why_not() or ""
        if self.cut_off:
            return None
        answer = in_background(work, "thinking")
        self._last = answer
        while not wait([answer], _LOOK_SECONDS).done:
            self.cut_off = self._why_not() or ""
            if self.cut_off:
                return None
        return answer.result()

    def _answers(self, engine: Engine, requests: Sequence[Request]) -> list[Completion]:
        completions = self.ask(lambda: engine.generate(requests))
        if completions is None:
            return [failed_completion(f"cut off: {self.cut_off}") for _ in requests]
        self.answered += len(requests)
        return completions


# -- a strategy --------------------------------------------------------------------------------------------------------


class StrategyPlayer:
    """One run of the strategy `subject`: it decides at each due close, as in a backtest, without a guard.

    What it remembers is in its own attributes, which no journal can hold. So a resumed session lets a new one decide
    again at each recorded decision, with the market and the account of then: it ends where the former one stood, or is
    refused because it decides something else.
    """

    def __init__(self, subject: NamedStrategy) -> None:
        self.name = subject.name
        self._strategy = subject.make()
        self._fitted = False

    def decide(self, view: MarketView, account: AccountView) -> list[OrderRequest]:
        """Its requests at this close, after its `fit` at the first one. Raises `UserError` where it fails or gives
        anything but requests."""
        try:
            if not self._fitted:
                fit(self._strategy, view)
                self._fitted = True
            requests = list(self._strategy.decide(view, account))
        except UserError:
            raise
        except Exception as error:  # whatever a user's own code raises
            raise UserError(f"{self.name} failed: {describe_failure(error)}; fix it first") from error
        for one in requests:
            if not isinstance(one, OrderRequest):
                raise UserError(
                    f"{self.name}: decide gave {one!r:.60} among its orders: give a list of Order or Target"
                )
        return requests

    def again(self, view: MarketView, account: AccountView, recorded: Mapping[str, Any]) -> list[OrderRequest]:
        """Its requests at a recorded decision: none where they were not waited for."""
        if recorded.get("cut_off") == BUSY:  # it was not asked at all
            return []
        requests = self.decide(view, account)
        return [] if recorded.get("cut_off") else requests

    def check_again(self, view: MarketView, account: AccountView, recorded: Mapping[str, Any]) -> None:
        """Decide again. Raises `UserError` where that is not what was recorded."""
        requests = [record_to_json(one) for one in self.again(view, account, recorded)]
        if requests != [request for request, _ in recorded["requests"]]:
            raise UserError(
                f"{self.name} decides something else than it did at bar {recorded['bar']} of this session: put its "
                "former code back, take chance and outside data out of it, or begin another session"
            )


def trade(player: StrategyPlayer, session: TradingSession, thinker: DeadlineRunner) -> None:
    """Let `player` trade `session` to its end."""
    session.watched_by(_no_orders)
    while not session.done:
        view, account = session.view(), session.account()
        requests: Sequence[OrderRequest] = ()
        if not account.liquidated:
            requests = thinker.ask(partial(player.decide, view, account)) or ()
        session.apply(requests, [session.late_ms(0)] * len(requests))


def _no_orders(_view: MarketView, _account: AccountView) -> Sequence[OrderRequest]:
    return ()
