"""Sample the call stacks of a worker's threads, for a flame graph."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import CodeType, FrameType
from typing import Any, NamedTuple

#: How long a worker samples its threads, and the pause between two samples, in seconds. A thread
#: that computes gives the others a turn every 5 ms, so a shorter pause would have no effect.
SAMPLE_SECONDS, PAUSE_SECONDS = 5.0, 0.01
#: The number of different stacks that are reported; the most frequent ones are.
MAX_STACKS = 1_000
#: The number of frames of a stack that are kept, from the innermost one.
MAX_FRAMES = 200


class SampledStacks(NamedTuple):
    """The call stacks of a process.

    Arguments:
        samples: how often all threads were looked at.
        frames: the texts of frames: a name, a file and a line; or the name of a thread.
        stacks: [count, *indices in `frames`] of each stack, from the outermost frame.
    """

    samples: int
    frames: list[str]
    stacks: list[list[int]]


def sample_stacks(
    seconds: float = SAMPLE_SECONDS, pause: float = PAUSE_SECONDS, without: str = "heartbeat"
) -> SampledStacks:
    """Look at the threads of this process for a while, and return their call stacks.

    The function blocks, so it runs in a thread of its own, which it leaves out.

    Arguments:
        seconds: how long it looks.
        pause: the time between two samples, in seconds.
        without: the name of a thread that is left out, too.
    """
    counts: Counter[tuple[Any, ...]] = Counter()
    own, samples = threading.get_ident(), 0
    until = time.monotonic() + seconds
    while True:
        names = {one.ident: one.name for one in threading.enumerate()}
        for ident, frame in sys._current_frames().items():
            name = names.get(ident, "thread")
            if ident != own and name != without:
                counts[(name, *_codes(frame))] += 1
        samples += 1
        if time.monotonic() >= until:
            return _indexed(samples, counts)
        time.sleep(pause)


def _codes(innermost: FrameType) -> list[CodeType]:
    """Return the code of each frame of a stack, from the outermost one."""
    codes: list[CodeType] = []
    frame: FrameType | None = innermost
    while frame is not None and len(codes) < MAX_FRAMES:
        codes.append(frame.f_code)
        frame = frame.f_back
    codes.reverse()
    return codes


def _indexed(samples: int, counts: Counter[tuple[Any, ...]]) -> SampledStacks:
    indices: dict[str, int] = {}
    stacks = [
        [count, *(indices.setdefault(_text(one), len(indices)) for one in stack)]
        for stack, count in counts.most_common(MAX_STACKS)
    ]
    return SampledStacks(samples, list(indices), stacks)


def _text(frame: str | CodeType) -> str:
    if isinstance(frame, str):
        return frame
    return f"{frame.co_qualname} ({frame.co_filename}:{frame.co_firstlineno})"
