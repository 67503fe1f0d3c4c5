"""Look at the keys of some records, to find hot keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from penstock.runtime.serialization.record_batch import RecordBatch

#: The number of records that are looked at after each request.
SAMPLED = 256
#: The number of keys that are reported, and the number of characters of each.
MOST_KEYS, MOST_CHARACTERS = 5, 60


class KeySampler:
    """Counts the keys of the next records of a task, after a request.

    Arguments:
        selectors: the key selector of each link to the task that divides records by key.
    """

    def __init__(self, selectors: Mapping[int, Callable[[Any], Any]]) -> None:
        self._selectors = selectors
        self._left = 0
        self._counts: Counter[Any] = Counter()

    @property
    def wanted(self) -> bool:
        """Return whether the next batch must be given to `sample`."""
        return self._left > 0

    def request(self) -> None:
        """Look at the keys of the next records, if the task has keys."""
        if self._selectors:
            self._left = SAMPLED

    def sample(self, link: int, batch: RecordBatch) -> None:
        """Count the keys of a batch.

        If a key selector fails, the operator fails in the same way, and says with which record.
        """
        selector = self._selectors.get(link)
        if selector is None:
            return
        count = min(self._left, batch.count)
        self._left -= count
        try:
            self._counts.update(map(selector, batch.slice(0, count).rows()))
        except Exception:
            self._left = 0

    def take(self) -> list[Any]:
        """Remove and return the counts.

        Returns:
            A list of the number of records, and the text and number of each of the first keys.
        """
        counts, self._counts, self._left = self._counts, Counter(), 0
        keys = [[_text(key), number] for key, number in counts.most_common(MOST_KEYS)]
        return [counts.total(), keys]


def _text(key: Any) -> str:
    try:
        text = repr(key)
    except Exception:
        return f"a {type(key).__name__}"
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"
