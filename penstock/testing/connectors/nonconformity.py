"""The error of a connector that does not conform, and comparisons that raise it."""

from __future__ import annotations

import copy
import gc
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from penstock.dataflow.errors import JobError
from penstock.runtime.control.code_pickler import copied_as_code
from penstock.snapshot.metadata.plain_values import pack_plain, require_plain, unpack_plain

Connector = TypeVar("Connector")

#: The number of runs after the first one, and the time for threads of the last one to end.
_RUNS, _END_SECONDS = 4, 30.0


class Nonconformity(AssertionError):
    """The error of a connector with a defect by which a job can lose or double records."""


def in_other_process(connector: Connector) -> Connector:
    """Return the copy of a connector that another process of the job would get.

    Raises:
        Nonconformity: if it cannot be pickled.
    """
    try:
        copied: Connector = copied_as_code(connector)
    except Exception as error:
        raise Nonconformity(
            f"a {type(connector).__name__} cannot be sent to a worker: {type(error).__name__}: "
            f"{error}. Open connections, files and locks in the reader, poller or writer"
        ) from error
    return copied


def as_in_manifest(what: str, value: Any) -> Any:
    """Return the value that is read back after a value was written to a manifest.

    Raises:
        Nonconformity: if the value is not plain, or if the value that is read back differs.
    """
    try:
        require_plain(what, value, "the connector")
    except JobError as error:
        raise Nonconformity(error.message) from error
    back = unpack_plain(pack_plain(value))
    if back != value:
        raise Nonconformity(f"the {what} {value!r} comes back from a snapshot as {back!r}")
    return copy.deepcopy(back)


def require_same(what: str, found: Iterable[Any], expected: Iterable[Any]) -> None:
    """Check that two collections have the same records, in any order.

    Arguments:
        what: the name of the collection `found` in the error message.
        found: the records that were found.
        expected: the records that should have been found.

    Raises:
        Nonconformity: if records were lost or doubled.
    """
    found, expected = Counter(map(repr, found)), Counter(map(repr, expected))
    lost, doubled = expected - found, found - expected
    problems = [
        f"{count.total()} {word} ({', '.join(list(count)[:3])}{', …' if len(count) > 3 else ''})"
        for count, word in ((lost, "lost"), (doubled, "too many"))
        if count
    ]
    if problems:
        raise Nonconformity(f"{what}: of {expected.total()} records, {' and '.join(problems)}")


def require_no_open_files(run: Callable[[], object]) -> None:
    """Check that a connector that is closed leaves no files and connections open.

    The garbage collector is off, because workers use it rarely. So a client that is part of a cycle
    is found, too.

    Arguments:
        run: a function that opens, uses and closes the connector.

    Raises:
        Nonconformity: if each run leaves files open.
    """
    run()  # what is opened once for all runs may stay open
    before, enabled = _open_files(), gc.isenabled()
    gc.disable()
    try:
        for _ in range(_RUNS):
            run()
        deadline = time.monotonic() + _END_SECONDS
        while len(left := _open_files() - before) >= _RUNS:
            if time.monotonic() > deadline:
                raise Nonconformity(
                    f"{_RUNS} runs that were closed leave {len(left)} files or connections open, "
                    f"such as {min(left)[1]}. What `close` leaves to the garbage collector stays "
                    f"open in a worker"
                )
            time.sleep(0.01)
    finally:
        if enabled:
            gc.enable()


def _open_files() -> set[tuple[str, str]]:
    """Return the number and the target of each open file. Each pipe and socket has its own target.

    A count is not enough: other threads may close as many files as the connector leaves open.
    """
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the listing itself, or a file of another thread
            found.add((entry.name, str(entry.readlink())))
    return found
