"""The document of a stored decision: questions and answers, what RiskAnalyst and the guard changed, the
orders, and what the account made of them.

`DecisionDocument` writes and reads the content of a `DecisionRecord`; `backend.decisions.recording` makes it of a
team's decision, `backend.decisions.tree` puts its conversations in place. What models and news said is untrusted text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, InstanceOf, JsonValue, PlainSerializer

from backend.store.records import DecisionRecord, StoredDocument
from backend.store.store import Store
from simulator.exchange.orders import Order

# What a model said may hold any character that Python can, half a surrogate pair too.
ModelText = InstanceOf[str]
# A number that may be unusable: NaN here, null in JSON, which has no NaN.
MaybeNumber = Annotated[
    float,
    BeforeValidator(lambda value: math.nan if value is None else value),
    PlainSerializer(lambda value: None if math.isnan(value) else value),
]
EXAMPLE_DECISION = "story"  # the evaluation that keeps the decision which a run's report shows


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class StoredCall(_Part):
    """What a turn was read as when it was said: a call of `tool` with its checked `arguments`, with the number of
    conversations it opened; or no valid call, for the reason `code` (`cryptosentinel.protocol.tool_calls.Code`) and
    `detail`."""

    tool: ModelText = ""
    arguments: dict[str, JsonValue] = {}
    opened: int = 0
    code: ModelText = ""
    detail: ModelText = ""


class Message(_Part):
    """One message of a conversation. `role` is that of the chat: system, user, assistant or tool. An assistant's may
    begin with a `thought`, which is as untrusted as the rest, and has its `call`, None where its request failed."""

    role: str
    content: ModelText
    thought: ModelText = ""
    call: StoredCall | None = None


class TokenUsage(_Part):
    """What a conversation took and how sure its words were.

    `prompt` tokens were given to the model and `sampled` ones came from it, each counted once. `read` counts what the
    model was shown at each of its `turns`, all that went before included: `read` plus `sampled` is what an engine
    without a cache works through. `logp` is the sum of the sampled tokens' log-probabilities, `mean_logp` their mean,
    None where nothing was sampled. `cost` is money; `dropped` tool results were taken out to make room. `thought` of
    the sampled tokens were thoughts, and `thoughts_cut` thoughts were closed because their budget was spent.
    """

    prompt: int
    sampled: int
    turns: int
    read: int
    logp: float | None
    mean_logp: float | None
    cost: float
    dropped: int
    thought: int = 0
    thoughts_cut: int = 0


class ConversationDocument(_Part):
    """One conversation of one role. `asked` is the question that opened it, `answer` its valid answer, `problem` why
    there is none."""

    role: str
    ordinal: int
    policy_version: ModelText
    asked: dict[str, JsonValue]
    messages: tuple[Message, ...]
    answer: dict[str, JsonValue] | None
    problem: ModelText | None
    truncated: bool
    usage: TokenUsage


class RiskRuling(_Part):
    """A verdict of RiskAnalyst that made a position smaller, in shares of the equity.

    `verdict` is approve, reduce, veto, or invalid where its answer could not be used; `ordinal` the number of its
    conversation; `verdicts` how many there were on this symbol and side, of which the strictest holds.
    """

    symbol: str
    side: str
    asked: MaybeNumber
    allowed: MaybeNumber
    verdict: str
    ordinal: int
    verdicts: int


class GuardClamp(_Part):
    """One intervention of the guard, in signed base units. Without a symbol it tells of the whole account."""

    rule: str
    symbol: str
    asked: MaybeNumber
    allowed: MaybeNumber
    detail: str


class LaterClamp(GuardClamp):
    """What the guard did on its own after the decision, at the close `time` (ms)."""

    time: int


class DecisionDocument(StoredDocument):
    """A decision. `conversations[0]` is the manager's, the others stand in the order of the calls.

    `symbols` are the coins that it was about, in the order of the manager's brief. `net_return` is the
    change of the account's equity up to the next decision. `thinking_ms` is how late the orders were because the
    decision took time. The last four are None where they are not known.
    `later` is what the guard did until the next decision.
    """

    symbols: tuple[str, ...]
    conversations: tuple[ConversationDocument, ...]
    rulings: tuple[RiskRuling, ...]
    clamps: tuple[GuardClamp, ...]
    orders: tuple[Order, ...]
    later: tuple[LaterClamp, ...] = ()
    equity_before: float | None = None
    equity_after: float | None = None
    net_return: float | None = None
    thinking_ms: int | None = None


class ExampleDecision(DecisionDocument):
    """The decision of an evaluation that its report shows: `window` is the backtest that it belongs to, `time` the
    close at which it was made."""

    window: str | int = ""
    time: int | None = None


@dataclass(frozen=True)
class StoredDecision:
    """A decision with its place: the run, the backtest (`BacktestRecord.name`), its number there and its time."""

    run: str
    backtest: str
    ordinal: int
    time: int
    document: DecisionDocument

    @classmethod
    def from_record(cls, record: DecisionRecord) -> StoredDecision:
        """Read a record. Raises `StoreError`, naming it, where its document cannot be read."""
        where = f"decision {record.ordinal} of {record.backtest} in run {record.run}"
        document = DecisionDocument.from_json(record.document, where)
        return cls(record.run, record.backtest, record.ordinal, record.time, document)

    def record(self) -> DecisionRecord:
        """What the store keeps."""
        return DecisionRecord(self.run, self.backtest, self.ordinal, self.time, self.document.to_json())

    def example(self) -> ExampleDecision:
        """The same decision as an evaluation's example."""
        fields = {name: getattr(self.document, name) for name in DecisionDocument.model_fields}
        return ExampleDecision.model_construct(**fields, window=self.backtest, time=self.time)


def read_decisions(store: Store, run: str) -> list[StoredDecision]:
    """The decisions of a run, in order of backtest, then ordinal. Raises `StoreError` where one cannot be read."""
    return [StoredDecision.from_record(record) for record in store.decisions(run)]


def write_decisions(store: Store, decisions: Sequence[StoredDecision]) -> None:
    """Add decisions to the store."""
    store.put(*[decision.record() for decision in decisions])
