"""Track the windows of one key if windows can merge, as sessions do.

The contents of a merged window stay where they are: they belong to a *state window*, which is one
of the windows that were merged. So a session that grows with each record does not move its
contents.
(Flink: `MergingWindowSet`.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

W = TypeVar("W")


class MergingWindowSet(Generic[W]):
    """The windows of one key, each with the window that its contents belong to.

    Arguments:
        pairs: the windows that the key already has, each with its state window.
        merge_windows: finds the windows to merge. It calls its second argument with the windows
            and the result of each merge, as `MergingWindowAssigner.merge_windows` does.
    """

    def __init__(
        self,
        pairs: Iterable[tuple[W, W]],
        merge_windows: Callable[[list[W], Callable[[Iterable[W], W], None]], Any],
    ) -> None:
        self._state_windows = dict(pairs)
        self._merge_windows = merge_windows

    @property
    def pairs(self) -> tuple[tuple[W, W], ...]:
        """The windows, each with its state window."""
        return tuple(self._state_windows.items())

    def state_window(self, window: W) -> W | None:
        """Return the window that the contents of `window` belong to; None if it is gone."""
        return self._state_windows.get(window)

    def retire(self, window: W) -> None:
        """Remove a window."""
        self._state_windows.pop(window, None)

    def add(self, window: W, merged: Callable[[W, list[W], W, list[W]], None]) -> W:
        """Add a window, merge it with others if necessary, and return the window it became.

        Arguments:
            window: the window of a record.
            merged: called for each merge, before this method returns. It gets the result, the
                windows that were merged into it, the state window of the result, and the other
                state windows, whose contents must be merged into that state window.
        """
        states = self._state_windows
        results: dict[W, list[W]] = {}

        def collect(windows: Iterable[W], result: W) -> None:
            results[result] = list(dict.fromkeys(windows))

        self._merge_windows(list(dict.fromkeys([*states, window])), collect)
        became, is_new = window, window not in states
        for result, parts in results.items():
            if window in parts:
                became = result
                if is_new:
                    parts.remove(window)  # it has no contents yet
            if not parts:
                continue
            kept = states[parts[0]]
            others = [states.pop(part) for part in parts]
            states[result] = kept
            others.remove(kept)
            # Nothing changes if a window that exists absorbs the new window.
            if parts != [result]:
                merged(result, parts, kept, others)
        states.setdefault(became, became)
        return became
