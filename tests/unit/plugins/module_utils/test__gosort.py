# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The order of equal items, as a program in Go 1.26 printed it for the same lists with sort.Sort."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.tenantry.gpu.plugins.module_utils._gosort import go_sort


@pytest.mark.parametrize(
    ("keys", "order"),
    [
        pytest.param("1010", "1 3 0 2", id="few items: equal ones keep their order"),
        pytest.param("0001222222221100", "1 2 0 15 14 12 3 13 4 9 10 11 8 7 6 5", id="more do not"),
        pytest.param("2100010102211202", "8 2 3 4 6 14 11 5 1 7 12 9 10 13 0 15", id="a bad pivot"),
        pytest.param("44443222221111110000", "16 19 18 17 15 14 13 12 11 10 9 8 7 6 5 4 0 3 2 1", id="equals parted"),
        pytest.param(
            "011110000111100100000110101",
            "18 19 25 13 23 5 6 7 8 20 0 14 17 16 2 15 24 1 10 21 12 11 22 4 3 9 26",
            id="bad pivots",
        ),
        pytest.param(
            "22000221200221221120211100002200",
            "19 31 2 3 4 30 27 26 25 9 10 24 16 21 7 23 22 17 13 8 20 18 0 15 11 12 14 6 28 29 5 1",
            id="many items",
        ),
    ],
)
def test_equal_items_stand_as_go_leaves_them(keys, order):
    items = list(enumerate(keys))
    go_sort(items, key=lambda item: item[1])
    assert " ".join(str(index) for index, _key in items) == order


@given(st.lists(st.integers(0, 5), max_size=60))
def test_any_list_is_sorted(keys):
    items = list(enumerate(keys))
    go_sort(items, key=lambda item: item[1])
    assert [key for _index, key in items] == sorted(keys)
    assert sorted(items) == list(enumerate(keys))


@given(st.lists(st.integers(0, 5), max_size=60))
def test_a_sorted_list_stays_as_it_is(keys):
    items = list(enumerate(sorted(keys)))
    go_sort(items, key=lambda item: item[1])
    assert items == list(enumerate(sorted(keys)))
