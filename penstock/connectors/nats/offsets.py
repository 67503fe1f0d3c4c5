"""Define where a job begins to read a stream: `NatsOffsets`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from penstock.dataflow.errors import GraphError


@dataclass(frozen=True)
class NatsOffsets:
    """Chooses where a job that has no snapshot begins to read a stream.

    It has the form of Flink's `KafkaOffsetsInitializer`. The place is looked up once, when the job
    is started. A resumed job goes on at the positions of its snapshot.

    Arguments:
        kind: the kind of the beginning.
        value: the time in milliseconds since the epoch, or the sequence.

    Examples:
        >>> NatsOffsets.at_sequence(7).value
        7
    """

    kind: Literal["earliest", "latest", "timestamp", "sequence"]
    value: int = 0

    @classmethod
    def earliest(cls) -> NatsOffsets:
        """Begin at the first message that the stream has."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> NatsOffsets:
        """Begin behind the last message that the stream has when the job is started."""
        return cls("latest")

    @classmethod
    def at_timestamp(cls, milliseconds: int) -> NatsOffsets:
        """Begin at the first message that was stored at this time or later."""
        if milliseconds < 0:
            raise GraphError(f"a timestamp has milliseconds since 1970, and got {milliseconds}")
        return cls("timestamp", milliseconds)

    @classmethod
    def at_sequence(cls, sequence: int) -> NatsOffsets:
        """Begin at the message with this sequence, or at the first one behind it."""
        if sequence < 1:
            raise GraphError(f"the sequences of a stream begin at 1, and got {sequence}")
        return cls("sequence", sequence)
