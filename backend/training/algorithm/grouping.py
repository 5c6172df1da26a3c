"""Which calls of a sub-agent are compared with which, and what a call is compared with that has no peer.

The paper (arXiv 2511.13288) compares all calls of a role on a query. Where the manager asks different things, their
rewards differ by the question more than by the answer, and the role is praised for what it was asked. Keys from coarse
to fine; a group of fewer than `min_group` calls backs off to the coarsest:

    role       (q, a)             the paper
    ordinal    (q, a, ordinal)    first calls with first calls, second with second
    question   (q, a, question)   calls that read the same before they said anything: answers to one question on one
                                  state (as GiGPO groups actions by equal states, arXiv 2505.10978)

Where rollouts repeat the beginning of another one and are sampled anew from the answer to a question on
(`experimental.resampled_answers`), all answers to that question are compared with each other, the first one included,
whatever the key: they were given in one and the same situation (AT-GRPO, arXiv 2510.11062). What the manager said after
them is compared with what it said after the first answer.

A call that is alone in (q, a) has no peer there and no advantage. With the baseline of the batch it is compared with
the role's calls on the other queries (leave-one-out, Kool, van Hoof and Welling 2019; RLOO, arXiv 2402.14740):

    A = (R - mean_others) / sigma_others

Each other query counts alike, with the weights of its alignment. Mean and sigma depend on no answer of this query, so
the gradient stays unbiased; without peers on the same state it has more variance than a group's, for the queries differ
in what could be earned.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from backend.training.algorithm.trajectory import Trajectory
from simulator.arrays import FloatArray

GroupKey = Literal["role", "ordinal", "question"]
SingleCalls = Literal["none", "batch"]

# As in `advantages`: rewards are sums of a few products, so equal ones may differ in the last bits.
_ROUNDING = 1e-12


def question_of(call: Trajectory) -> bytes:
    """What a call had read before its first sampled token, as a key: system turn, brief and what came with it."""
    sampled = np.flatnonzero(call.mask)
    return call.ids[: sampled[0] if len(sampled) else len(call.ids)].tobytes()


def comparisons(
    calls: Sequence[Trajectory],
    weights: FloatArray,
    how: GroupKey,
    min_group: int,
    origins: Sequence[int | None] = (),
) -> list[tuple[list[int], list[int]]]:
    """Which calls of one query and sub-agent are compared with which, as positions: (members, receivers). The members
    make the statistics; the receivers, some or all of them, take their advantage from these.

    Calls that the alignment dropped (weight 0) do not count towards `min_group`. Nothing is compared without calls.
    `origins` are the numbers of the rollouts whose beginnings those of the calls repeat, None for the others; it
    may be empty where there is none.
    """
    again = _answered_again(calls, weights, origins) if any(origin is not None for origin in origins) else []
    rest = set(range(len(calls))).difference(*again)
    return [(own, own) for own in again] + [
        (members, receivers)
        for members, those in _by_key(calls, weights, how, min_group)
        if (receivers := [one for one in those if one in rest])
    ]


def continuations(mains: Sequence[Trajectory], origins: Sequence[int | None]) -> list[tuple[list[int], list[int]]]:
    """The same of the manager's conversations on one query, one a rollout. Whole ones are compared with whole ones. Of
    those that repeat the beginning of one only the rest is learnt from: it is compared with that one's rest too."""
    whole = [place for place, origin in enumerate(origins) if origin is None]
    compared = [(whole, whole)] if whole else []
    for number in sorted({origin for origin in origins if origin is not None}):
        further = [place for place, origin in enumerate(origins) if origin == number]
        compared.append(([place for place in whole if mains[place].rollout == number] + further, further))
    return compared


def _answered_again(calls: Sequence[Trajectory], weights: FloatArray, origins: Sequence[int | None]) -> list[list[int]]:
    """The answers to each question that was answered again, where two or more of them count."""
    answers: dict[Hashable, list[int]] = {}
    for position, (call, origin) in enumerate(zip(calls, origins, strict=True)):
        key = (call.rollout if origin is None else origin, call.ordinal, question_of(call))
        answers.setdefault(key, []).append(position)
    return [
        own
        for own in answers.values()
        if any(origins[one] is not None for one in own)
        and any(origins[one] is None for one in own)
        and np.count_nonzero(weights[own]) > 1
    ]


def _by_key(
    calls: Sequence[Trajectory], weights: FloatArray, how: GroupKey, min_group: int
) -> list[tuple[list[int], list[int]]]:
    everyone = list(range(len(calls)))
    if how == "role":
        return [(everyone, everyone)] if everyone else []
    keys: dict[Hashable, list[int]] = {}
    for position, call in enumerate(calls):
        key = call.ordinal if how == "ordinal" else question_of(call)
        keys.setdefault(key, []).append(position)
    large = [own for own in keys.values() if np.count_nonzero(weights[own]) >= min_group]
    rest = sorted(set(everyone).difference(*large))
    return [(own, own) for own in large] + ([(everyone, rest)] if rest else [])


def is_single(weights: FloatArray) -> bool:
    """Whether one call alone counts in a group with these alignment weights."""
    return int(np.count_nonzero(weights)) == 1


def single_call_advantage(
    reward: float, others: Sequence[tuple[FloatArray, FloatArray]], scale: bool
) -> tuple[float, bool]:
    """(R - mean) / sigma of a call without peers, R - mean without `scale`, and whether there was nothing to compare.

    `others` are rewards and alignment weights, (n,) each, of the role's calls on each other query; queries without a
    call that counts are left out, and each of the rest counts alike. Without any, or with `scale` where all of them are
    equal, the advantage is 0.
    """
    counted = [(rewards, weights) for rewards, weights in others if weights.sum() > 0.0]
    if not counted:
        return 0.0, True
    values = np.concatenate([rewards for rewards, _ in counted])
    share = np.concatenate([weights / weights.sum() for _, weights in counted]) / len(counted)
    inside = values[share > 0.0]
    mean = float(share @ values)
    equal = bool(np.ptp(inside) <= _ROUNDING * np.abs(inside).max())
    if not scale:
        return reward - mean, False
    if equal:
        return 0.0, True
    return (reward - mean) / float(np.sqrt(share @ (values - mean) ** 2)), False
