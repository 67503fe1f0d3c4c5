"""Signals that wake a task's loop, checkpoint writer and source reader."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.runtime.system.signal import Signal


@dataclass(frozen=True)
class TaskSignals:
    """The signals that wake the parts of one task.

    Arguments:
        loop: wakes the task's loop.
        writer: wakes the task's checkpoint writer.
        reader: wakes the coroutine that reads the task's source in threads.
    """

    loop: Signal = field(default_factory=Signal)
    writer: Signal = field(default_factory=Signal)
    reader: Signal = field(default_factory=Signal)

    def wake_source(self) -> None:
        """Wake the task's loop and the reader of its source."""
        self.loop.set()
        self.reader.set()
