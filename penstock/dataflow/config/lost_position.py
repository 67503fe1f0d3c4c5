"""Choose what sources do if the records behind their positions are gone."""

from __future__ import annotations

from enum import Enum


class LostPosition(Enum):
    """Chooses what a source does if the records behind its position are gone.

    A position is lost if the retention of a stream has removed records before the job has read
    them, or if a stream was deleted and created again.

    FAIL: the job ends with an error that describes the loss.
    EARLIEST: the job goes on with the first record that is left. The source logs and counts the
        loss.
    """

    FAIL = "fail"
    EARLIEST = "earliest"
