"""Choose who owns the snapshot of another job from which a job starts."""

from __future__ import annotations

from enum import Enum


class RecoveryClaimMode(Enum):
    """Chooses who owns the snapshot from which a fork starts. (Flink: `RecoveryClaimMode`.)

    NO_CLAIM: the snapshot stays as it is. The job links or copies its files first, so it may be
        removed at any time.
    CLAIM: the job owns the snapshot. It removes the snapshot as soon as it has as many snapshots of
        its own as are retained.

    Examples:
        >>> RecoveryClaimMode("claim")
        <RecoveryClaimMode.CLAIM: 'claim'>
    """

    NO_CLAIM = "no-claim"
    CLAIM = "claim"
