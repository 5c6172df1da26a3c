"""Numbers as a text: they come back to the bit, and rows are like the lists that they stand for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from backend.decisions.packed_numbers import PackedRows, packed, unpacked

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(finite), st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_numbers_come_back_to_the_bit(floats: list[float], integers: list[int]) -> None:
    assert repr(unpacked(packed(floats, "f8"), "f8").tolist()) == repr(floats)
    assert unpacked(packed(integers, "i8"), "i8").tolist() == integers


@given(st.text().filter(lambda text: not text.startswith("f8:")))
def test_any_other_text_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="numbers as a text"):
        unpacked(text, "f8")


@given(arrays.arrays(np.float64, st.tuples(st.integers(0, 6), st.integers(1, 3)), elements=finite), st.data())
def test_rows_are_like_the_lists_that_they_stand_for(array: np.ndarray, data: st.DataObject) -> None:
    rows, lists = PackedRows(array), array.tolist()
    part = data.draw(st.slices(len(lists)))
    assert rows == lists and list(rows) == lists and len(rows) == len(lists) and rows.width == array.shape[1]
    assert rows[part] == lists[part] and [rows[place] for place in range(len(rows))] == lists
    assert rows != [*lists, [0.0]] and np.array_equal(np.asarray(rows), array)
