"""How often to leave out what was in vain. Counts turns and knows nothing of what they are."""

from __future__ import annotations

__all__ = ["Backoff"]

#: No more turns than this are left out in a row.
MAX_SKIPPED = 16


class Backoff:
    """Leaves out 1, 2, 4 turns and so on for as long as each that is taken is in vain."""

    def __init__(self) -> None:
        #: So many of the turns that come are left out.
        self.left = 0
        self._skip = 0

    def skip(self) -> bool:
        """A turn has come: whether it is one of those that are left out."""
        if not self.left:
            return False
        self.left -= 1
        return True

    def judge(self, in_vain: bool) -> None:
        """What became of a turn that was taken."""
        self._skip = min(MAX_SKIPPED, self._skip * 2 or 1) if in_vain else 0
        self.left = self._skip
