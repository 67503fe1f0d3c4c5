"""Define `ExternalizedCheckpointRetention`: whether the snapshots of a job outlive it."""

from __future__ import annotations

from enum import Enum


class ExternalizedCheckpointRetention(Enum):
    """Whether the checkpoints of a job are kept when it ends.

    (Flink: `ExternalizedCheckpointRetention`.) If a program sets none, they are always kept.
    Savepoints are always kept, and so is the last snapshot of a job that is stopped: it can be
    resumed.

    DELETE_ON_CANCELLATION: they are kept if the job fails. They are removed if it finishes, or if
        `JobClient.cancel` ends it.
    RETAIN_ON_CANCELLATION: they are always kept.
    NO_EXTERNALIZED_CHECKPOINTS: they are removed when the job finishes, fails or is cancelled.

    Examples:
        >>> config = env.get_checkpoint_config()
        >>> retention = ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION
        >>> _ = config.set_externalized_checkpoint_retention(retention)
    """

    DELETE_ON_CANCELLATION = 0
    RETAIN_ON_CANCELLATION = 1
    NO_EXTERNALIZED_CHECKPOINTS = 2

    @property
    def deletes_when_cancelled(self) -> bool:
        """Whether checkpoints are removed when the job is cancelled or has finished."""
        return self is not ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION

    @property
    def deletes_when_failed(self) -> bool:
        """Whether checkpoints are removed when the job has failed for good."""
        return self is ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS


#: The name of Flink 1.
ExternalizedCheckpointCleanup = ExternalizedCheckpointRetention
