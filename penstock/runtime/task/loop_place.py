"""Describe the place of a task in its loop, for event time."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from penstock.runtime.task.loop_watermarks import LoopWatermarks

__all__ = ["LoopPlace"]


@dataclass(frozen=True)
class LoopPlace:
    """Describes a task in a loop: its input channels, and its object for the watermarks of the
    loop.

    Arguments:
        outside: the input channels from outside of the loop.
        regular: the input channels from inside of the loop that are not back-edges.
        watermarks: decides when a watermark advances inside of the loop, and when it may leave it.
    """

    outside: tuple[Hashable, ...]
    regular: tuple[Hashable, ...]
    watermarks: LoopWatermarks
