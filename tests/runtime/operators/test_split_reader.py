"""`SplitReader`: a reader that a thread opens while, or after, the task closes it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from penstock.dataflow.source import Read, SourceReader, Split
from penstock.runtime.operators.split_reader import SplitReader


class Connecting(SourceReader):
    """Has a connection from `open` to `close`, and waits in `open` until it may go on."""

    blocking = True

    def __init__(self) -> None:
        self.opening, self.may_go_on = threading.Event(), threading.Event()
        self.connected = False

    def open(self, split: Split, position: Any) -> None:
        self.opening.set()
        self.may_go_on.wait()
        self.connected = True

    def read(self, max_records: int) -> Read:
        return Read([1], 1, False)

    def close(self) -> None:
        self.connected = False


@pytest.mark.parametrize("while_opening", [False, True])
def test_a_reader_that_is_opened_in_a_thread_does_not_outlive_its_task(while_opening: bool):
    reader = Connecting()
    split = SplitReader(reader, lambda: 0.0, lambda: None)
    split.open(Split("a"), None)
    thread = threading.Thread(target=split._read_in_thread)
    if while_opening:
        thread.start()
        reader.opening.wait()
        split.close()
    else:
        split.close()
        thread.start()
    reader.may_go_on.set()
    thread.join()
    assert reader.opening.is_set()
    assert not reader.connected
