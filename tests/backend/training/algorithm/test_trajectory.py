"""Trajectories refuse what cannot be one, and pad without loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from backend.training.algorithm.trajectory import Trajectory, pad_trajectories

Make = Callable[..., Trajectory]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ids": np.zeros(3, np.int32)}, "mask has 13 entries for 3 ids"),
        ({"ids": np.zeros(13, np.int64)}, "ids must be one row of int32"),
        ({"ids": np.zeros((1, 13), np.int32)}, "ids must be one row"),
        ({"mask": np.ones(13, np.bool_)}, "the first token"),
        ({"sampled_logps": np.full(13, np.nan, np.float32)}, "finite"),
        ({"sampled_logps": np.full(13, -1.0, np.float32)}, "0 where the mask is False"),
        ({"format_score": 1.5}, "format_score"),
        ({"expert": float("nan")}, "expert"),
    ],
)
def test_what_cannot_be_a_trajectory_is_refused_by_name(make: Make, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        make(3, **changes)
    assert "manager, query q0, rollout 3" in str(error.value)


def test_padding_keeps_every_sampled_token_and_cuts_what_follows_the_last(make: Make) -> None:
    short, long = make(1, prompt=3, answer=1), make(2, prompt=6, answer=5)
    tail = make(3, mask=np.repeat([False, True, False], [5, 2, 6]), sampled_logps=np.zeros(13, np.float32))
    batch = pad_trajectories([short, long, tail])
    assert batch.ids.shape == batch.mask.shape == batch.sampled_logps.shape == (3, 15)
    assert batch.ids.dtype == torch.int64
    for row, one in enumerate([short, long, tail]):
        assert batch.ids[row][batch.mask[row]].tolist() == one.ids[one.mask].tolist()
        assert batch.sampled_logps[row][batch.mask[row]].tolist() == one.sampled_logps[one.mask].tolist()
    assert not batch.ids[2, 7:].any(), "tokens after the last sampled one are cut"
    assert pad_trajectories([tail]).ids.shape == (1, 7)


def test_a_trajectory_without_a_sampled_token_still_has_a_row(make: Make) -> None:
    silent = make(1, mask=np.zeros(13, np.bool_), sampled_logps=np.zeros(13, np.float32))
    assert pad_trajectories([silent]).mask.tolist() == [[False]]
