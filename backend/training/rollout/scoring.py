"""What a rollout was worth: the team's outcome and the verifiable expert score of each sub-agent's call.

All calls and rollouts of a query are scored on the same scenarios, so that luck is common and differences are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from backend.config.training import TrainingConfig
from backend.training.algorithm.rewards import (
    NO_TAIL,
    Outcome,
    Tail,
    brier_score,
    intervention_value,
    outcome_score,
    outcome_scores,
    pinball_score,
    shortfall_score,
)
from backend.training.curriculum.queries import Query, account_holding
from cryptosentinel.agents.market_analyst import FLAT_BAND, Analysis, advised_exposure
from cryptosentinel.agents.registry import ROLES
from cryptosentinel.agents.risk_analyst import LOSS_LEVEL, Verdict
from cryptosentinel.agents.role import ExpertScore, Role, SubAgent
from cryptosentinel.agents.trader import Execution
from cryptosentinel.conversation.transcript import Transcript
from cryptosentinel.protocol.tool_calls import Arguments
from simulator.arrays import FloatArray
from simulator.backtest.run import orders_for_target
from simulator.backtest.scenarios import ScenarioOutcome, simulate_scenarios
from simulator.errors import UserError
from simulator.exchange.costs import Costs
from simulator.exchange.exchange_records import AccountView
from simulator.exchange.orders import Order
from simulator.exchange.rules import SymbolRules

PINBALL_SCALE = 4.0  # volatilities of the horizon; larger losses of the position are not told apart
TAIL_LOSS = 0.05  # of equity over the horizon, from which large losses count; at twice the loss all is lost
SHORTFALL_SCALE = 0.003  # an execution 30 basis points worse than the arrival price scores squash(-1)


def tail_of(config: TrainingConfig) -> Tail:
    """How much large losses count, as a configuration has it."""
    return Tail(config.tail_weight, TAIL_LOSS)


@dataclass(frozen=True)
class RewardFunctions:
    """The user's own reward of a decision (net returns (n,), volatility: a score), in place of the squashed return.

    With a share of `advice_weight` MarketAnalyst's score is the outcome, without costs, of the exposure that its lean
    speaks for; the rest is the Brier score of its probabilities. What a decision earns is a score of the forecast
    behind it too (Dawid 2007), and it tells who knows more: where edges are weak, the Brier score is nearly the same
    whatever was read. A share of `verdict_weight` of RiskAnalyst's is what its reductions and vetoes were worth; the
    rest is the pinball score of the loss that it states."""

    reward: Callable[[FloatArray, float], float] | None = None
    advice_weight: float = 0.0
    verdict_weight: float = TrainingConfig.model_fields["verdict_weight"].default

    def outcomes(self, net_returns: FloatArray, volatility: float, tail: Tail = NO_TAIL) -> FloatArray:
        """The score of each row of `net_returns` (K, n): (K,)."""
        if self.reward is None:
            return outcome_scores(net_returns, volatility, tail)
        return np.array([self.reward(row, volatility) for row in net_returns])


SHIPPED = RewardFunctions()


class RolloutScorer:
    """Scores everything that was said and done about one query. Holds the query's scenarios; equal orders are simulated
    once.

    A net return of one volatility is squashed to (1 + tanh 1) / 2: a decision is judged as if the account held this
    coin alone. Of a decision on the whole portfolio the volatility is that of a book of equal parts, see
    `PortfolioQuery`.

    With a `tail` large losses count besides (`rewards.outcome_score`). Each question that the manager puts to a
    sub-agent costs `question_cost`, a fraction of equity, which is taken off the net return.

    A sub-agent's answer is scored on the coin of its call, or as the mean over its coins. `functions` has what the user
    puts in the place of the outcome's formula and of expert scores.
    """

    def __init__(
        self,
        query: Query,
        paths: int,
        horizon: int,
        costs: Costs,
        max_leverage: float,
        tail: Tail = NO_TAIL,
        question_cost: float = 0.0,
        functions: RewardFunctions = SHIPPED,
    ) -> None:
        self.query = query
        self._functions = functions
        self._tail = tail
        self._question_cost = question_cost
        self._scenarios = query.scenarios(paths, horizon, costs)
        self._costs = costs
        self._max_leverage = max_leverage
        self._view = query.view()
        self._account = query.account()
        self._simulated: dict[tuple[object, ...], ScenarioOutcome] = {}
        marks = np.array([self._view.last_close(symbol) for symbol in query.symbols])
        self._moves = self._scenarios.close[:, -1] / marks - 1.0  # (paths, S) simple returns

    def outcome(self, orders: list[Order], questions: int = 0) -> Outcome:
        """What the orders earn over the horizon, marked at its end, net of all costs and of the price of the
        questions."""
        result = self._simulate(orders, self._account)
        net = result.net_return - questions * self._question_cost
        return Outcome(
            score=float(self._functions.outcomes(net[None], self.query.volatility, self._tail)[0]),
            net_return=float(np.mean(net)),
            fees=float(np.mean(result.fees)),
            spread=float(np.mean(result.spread)),
            funding=float(np.mean(result.funding)),
        )

    def expert_score(self, transcript: Transcript) -> float | None:
        """The score of a sub-agent's valid answer; None where nothing that could be measured came of it."""
        if transcript.answer is None:
            return None
        if transcript.role not in ROLES:
            raise ValueError(f"no expert score is defined for the role {transcript.role!r}")
        role = ROLES[transcript.role]
        answer = role.typed(transcript.answer)
        if answer is None or not self._measurable(transcript.brief["symbol"]):
            return None
        return self._score(role, transcript.brief, answer)

    def _score(self, role: Role, asked: Mapping[str, Any], answer: Arguments) -> float | None:
        if isinstance(role, SubAgent) and role.score is not None:
            return self._by_own_score(role, role.score, asked, answer)
        if isinstance(answer, Analysis):
            return self._analysis(answer, asked["symbol"])
        if isinstance(answer, Verdict):
            return self._verdict(answer, asked)
        if isinstance(answer, Execution):
            return self._execution(answer, asked)
        raise ValueError(f"no expert score is defined for the role {role.key!r}")

    def _by_own_score(self, role: Role, score: ExpertScore, asked: Mapping[str, Any], answer: Arguments) -> float:
        symbol = asked["symbol"]
        value = float(score(answer, asked, self._moves_of(symbol).copy(), self._volatility_of(symbol)))
        if not 0.0 <= value <= 1.0:  # False for NaN as well
            raise UserError(f"the score of the role '{role.key}' is {value}: it must lie between 0 and 1")
        return value

    def _measurable(self, symbol: str) -> bool:
        """Whether a coin's volatility is known at the state, and its price at the end of every scenario."""
        return self.query.volatility_of(symbol) is not None and bool(np.isfinite(self._moves_of(symbol)).all())

    def _moves_of(self, symbol: str) -> FloatArray:
        moves: FloatArray = self._moves[:, self.query.symbols.index(symbol)]
        return moves

    def _volatility_of(self, symbol: str) -> float:
        volatility = self.query.volatility_of(symbol)
        assert volatility is not None  # `_measurable`
        return volatility

    def _analysis(self, analysis: Analysis, symbol: str) -> float:
        band, moves = FLAT_BAND * self._volatility_of(symbol), self._moves_of(symbol)
        frequencies = [
            float(np.mean(moves < -band)),
            float(np.mean(np.abs(moves) <= band)),
            float(np.mean(moves > band)),
        ]
        calibrated = brier_score(analysis.distribution(), frequencies)
        share = self._functions.advice_weight
        if not share:
            return calibrated
        exposed = advised_exposure(analysis) * moves
        [earned] = self._functions.outcomes(exposed[None], self._volatility_of(symbol), self._tail)
        return (1.0 - share) * calibrated + share * float(earned)

    def _verdict(self, verdict: Verdict, asked: Mapping[str, Any]) -> float:
        side = asked["side"]
        proposed = float(asked["exposure"])
        moves, volatility = self._moves_of(asked["symbol"]), self._volatility_of(asked["symbol"])
        # A proposal to be flat risks nothing; its losses are those of the coin falling.
        gains = -moves if side == "short" else moves
        quantile = pinball_score(verdict.loss / 100, -gains, LOSS_LEVEL, PINBALL_SCALE * volatility)
        held = 0.0 if side == "flat" else 1.0
        cap = verdict.cap(proposed)
        free, capped = held * proposed * gains, held * cap * gains
        if self._tail.weight:  # what a cap is for does not show in a mean
            saved = outcome_score(capped, volatility, self._tail) - outcome_score(free, volatility, self._tail)
            value = 0.5 * (1.0 + saved)
        else:
            value = intervention_value(capped, free, volatility)
        share = self._functions.verdict_weight
        return (1.0 - share) * quantile + share * value

    def _execution(self, execution: Execution, asked: Mapping[str, Any]) -> float | None:
        sign = {"long": 1.0, "short": -1.0, "flat": 0.0}[asked["side"]]
        target, symbol = sign * float(asked["exposure"]), asked["symbol"]
        account = self._alone(symbol)
        orders = orders_for_target(self._view, account, symbol, target, delays=execution.delays())
        if not orders:
            return None
        rules = account.rules.get(symbol, SymbolRules())
        orders = execution.placed(orders, self._view.last_close(symbol), rules, account.positions[symbol])
        shortfall = self._simulate(orders, account).shortfall[:, self.query.symbols.index(symbol)]
        if execution.type == "limit":  # what was not traded has cost (or saved) the whole move
            side = 1.0 if orders[0].quantity > 0.0 else -1.0
            shortfall = np.where(np.isnan(shortfall), side * self._moves_of(symbol), shortfall)
        filled = shortfall[~np.isnan(shortfall)]
        return shortfall_score(float(np.mean(filled)), SHORTFALL_SCALE) if len(filled) else None

    def _alone(self, symbol: str) -> AccountView:
        """The account with nothing but what it holds of a coin. What others take of it says nothing about how this one
        is traded, and could refuse the order."""
        if len(self.query.symbols) == 1:
            return self._account
        return account_holding(self._view, {symbol: self.query.exposures()[symbol]})

    def _simulate(self, orders: list[Order], account: AccountView) -> ScenarioOutcome:
        key = (tuple(account.exposure.values()), *orders)
        if key not in self._simulated:
            self._simulated[key] = simulate_scenarios(
                self._scenarios,
                account,
                orders,
                self.query.market.symbols,
                costs=self._costs,
                max_leverage=self._max_leverage,
            )
        return self._simulated[key]
