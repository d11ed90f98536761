# Copyright (c) 2026, the tenantry.gpu authors
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The order into which Go's sort.Sort brings a list, also among items that are equal.

HAMi sorts a node's cards with it, and which of several equal cards a pod gets follows from that. Up to 12 items
it keeps equal ones in their order. Above it is a pattern-defeating quicksort (arXiv:2106.05123) that does not, but
whose steps are fixed: they are followed here as far as lists of fewer than 50 items take them. Longer lists are
sorted as well, but equal items may stand otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_INSERTION = 12


def go_sort(items: list[T], key: Callable[[T], Any]) -> None:
    """Sort in place by key, as sort.Sort of Go 1.19 to 1.26 does (src/sort/zsortinterface.go)."""
    if len(items) <= _INSERTION:
        items.sort(key=key)
    else:
        _Sorting(items, key).sort(0, len(items))


class _Sorting(Generic[T]):
    """A list while it is being sorted; every range is from first up to, but without, end."""

    def __init__(self, items: list[T], key: Callable[[T], Any]) -> None:
        self._items = items
        self._key = key

    def _less(self, one: int, other: int) -> bool:
        return bool(self._key(self._items[one]) < self._key(self._items[other]))

    def _swap(self, one: int, other: int) -> None:
        self._items[one], self._items[other] = self._items[other], self._items[one]

    def sort(self, first: int, end: int) -> None:
        balanced = partitioned = True
        while end - first > _INSERTION:
            length = end - first
            if not balanced:
                self._scatter(first, end)
            pivot, ordered = self._pivot(first, end)
            if balanced and partitioned and ordered and self._is_sorted(first, end):
                return
            if first > 0 and not self._less(first - 1, pivot):
                first = self._part_equal(first, end, pivot)
                continue
            middle, partitioned = self._part(first, end, pivot)
            balanced = min(middle - first, end - middle) >= length // 8
            if middle - first < end - middle:
                self.sort(first, middle)
                first = middle + 1
            else:
                self.sort(middle + 1, end)
                end = middle
        self._items[first:end] = sorted(self._items[first:end], key=self._key)

    def _is_sorted(self, first: int, end: int) -> bool:
        return not any(self._less(index, index - 1) for index in range(first + 1, end))

    def _scatter(self, first: int, end: int) -> None:
        """Break a pattern that led to a bad pivot, with numbers that are random but always the same (xorshift)."""
        length = end - first
        random, mask = length, (1 << length.bit_length()) - 1
        middle = first + length // 4 * 2
        for index in range(middle - 1, middle + 2):
            random ^= random << 13 & 2**64 - 1
            random ^= random >> 7
            random ^= random << 17 & 2**64 - 1
            other = random & mask
            self._swap(index, first + (other - length if other >= length else other))

    def _pivot(self, first: int, end: int) -> tuple[int, bool]:
        """The median of three items, and whether they were in order."""
        quarter = (end - first) // 4
        low, middle, high = (first + quarter * part for part in (1, 2, 3))
        ordered = True
        if self._less(middle, low):
            low, middle, ordered = middle, low, False
        if self._less(high, middle):
            middle, high, ordered = high, middle, False
        if self._less(middle, low):
            low, middle, ordered = middle, low, False
        return middle, ordered

    def _part(self, first: int, end: int, pivot: int) -> tuple[int, bool]:
        """Bring what is less than the pivot before it; where it stands then, and whether nothing had to move."""
        self._swap(first, pivot)
        low, high = first + 1, end - 1
        moved = False
        while True:
            while low <= high and self._less(low, first):
                low += 1
            while low <= high and not self._less(high, first):
                high -= 1
            if low > high:
                break
            self._swap(low, high)
            moved = True
            low, high = low + 1, high - 1
        self._swap(high, first)
        return high, not moved

    def _part_equal(self, first: int, end: int, pivot: int) -> int:
        """Bring what equals the pivot to the front, where nothing is less; the first that is greater."""
        self._swap(first, pivot)
        low, high = first + 1, end - 1
        while True:
            while low <= high and not self._less(first, low):
                low += 1
            while low <= high and self._less(first, high):
                high -= 1
            if low > high:
                return low
            self._swap(low, high)
            low, high = low + 1, high - 1
