"""Keys name rows by content and occurrence, wherever they stand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from specbatch.table.keys import (
    KEY_BYTES,
    KeyFinder,
    Keys,
    as_keys,
    base_key,
    final_keys,
    number_occurrences,
    number_occurrences_reference,
)

# Few distinct bytes at both ends: duplicates, trailing zeros and equal halves are common.
KEYS = st.lists(
    st.tuples(st.sampled_from([0, 1, 255]), st.sampled_from([0, 1, 255])).map(
        lambda ends: bytes([ends[0]]) + bytes(KEY_BYTES - 2) + bytes([ends[1]])
    ),
    max_size=30,
)


def array(keys: list[bytes]) -> Keys:
    return as_keys(b"".join(keys))


@given(KEYS)
def test_occurrences_are_counted_in_input_order(keys: list[bytes]) -> None:
    assert number_occurrences(array(keys)).tolist() == number_occurrences_reference(array(keys)).tolist()


@given(KEYS)
def test_final_keys_are_distinct_and_first_occurrences_keep_theirs(keys: list[bytes]) -> None:
    final = [key.tobytes() for key in final_keys(array(keys))]
    assert len(set(final)) == len(keys)
    for row, key in enumerate(keys):
        if key not in keys[:row]:
            assert final[row] == key


@given(KEYS, st.integers(0, 29))
def test_removing_a_later_row_changes_no_key_before_it(keys: list[bytes], row: int) -> None:
    whole = final_keys(array(keys)).tolist()
    assert final_keys(array(keys[:row])).tolist() == whole[:row]


@given(KEYS, KEYS)
def test_the_finder_finds_exactly_the_rows_that_are_there(keys: list[bytes], wanted: list[bytes]) -> None:
    present = list(dict.fromkeys(keys))
    expected = [present.index(key) if key in present else -1 for key in wanted]
    assert KeyFinder(array(present)).find(array(wanted)).tolist() == expected


def test_parameters_and_content_cannot_run_together() -> None:
    assert base_key(b"ab", b"c") != base_key(b"a", b"bc")
    assert np.dtype("V16").itemsize == KEY_BYTES
