"""The call stacks of a worker's threads, and their way to the owner of the job."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from penstock.runtime.taskmanager.stack_sampler import sample_stacks


@contextmanager
def thread(name: str) -> Iterator[None]:
    """Let a thread wait in a function of this module while the block runs."""
    end, begun = threading.Event(), threading.Event()

    def waiting() -> None:
        begun.set()
        end.wait()

    one = threading.Thread(target=waiting, name=name)
    one.start()
    begun.wait()
    yield
    end.set()
    one.join()


def test_each_stack_is_counted_from_its_thread_to_its_innermost_frame():
    with thread("own"), thread("heartbeat"):
        sampled = sample_stacks(seconds=0.05)
    texts = [[sampled.frames[index] for index in stack] for _, *stack in sampled.stacks]
    found = [stack for stack in texts if stack[0] == "own"]
    assert sum(count for count, *stack in sampled.stacks if sampled.frames[stack[0]] == "own") == (
        sampled.samples
    )
    names = [frame.split(" (")[0].rpartition(".")[2] for frame in found[0]]
    assert names.index("waiting") < names.index("wait")
    assert any("test_stack_sampler.py:" in frame for frame in found[0])
    # Neither the thread of heartbeats nor the one that samples is counted.
    assert not any(stack[0] == "heartbeat" for stack in texts)
    assert not any("sample_stacks" in frame for stack in texts for frame in stack)
