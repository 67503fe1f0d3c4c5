"""What the examples of requests share: a source that waits for kills, and a job that is killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from penstock import JobExecutionResult, PollingSource, SplitPoller, StreamExecutionEnvironment
from penstock.dataflow.program import current_options, run_options


class HeldBackSource(PollingSource):
    """Reads the second half of its records only when all kills are done.

    So the job does not end before its kills, on a machine of any speed.

    Arguments:
        count: the number of records.
        record: a function of a number from 0, which returns the record.
        gate: a file that exists when the kills are done.
    """

    def __init__(self, count: int, record: Callable[[int], Any], gate: Path) -> None:
        self.count, self.record, self.gate = count, record, gate

    def splits(self) -> list[str]:
        return ["all"]

    def create_poller(self, split: object) -> SplitPoller:
        return _HeldBackPoller(self)


class _HeldBackPoller(SplitPoller):
    def __init__(self, source: HeldBackSource) -> None:
        self.source = source

    def seek(self, position: Any) -> None:
        self.next = position or 0

    def poll(self, max_records: int) -> list[Any] | None:
        source, first = self.source, self.next
        half = source.count // 2
        end = source.count if first >= half and source.gate.exists() else half
        # A poll returns few records, so that the first half takes several snapshots.
        self.next = max(first, min(first + max_records, first + 50, end))
        if self.next == first:
            return None if first == source.count else []
        return list(map(source.record, range(first, self.next)))

    def position(self) -> int:
        return self.next


class Kills:
    """Kills a worker with SIGKILL at every second snapshot, until it has killed enough.

    Arguments:
        count: the number of workers to kill.
        gate: the file to write after the last kill.
    """

    def __init__(self, count: int, gate: Path) -> None:
        self.killed: list[int] = []
        self.restarts = 0
        self.seconds = 0.0
        self._count, self._gate = count, gate
        self._workers: list[int] = []
        self._snapshots = 0
        if not count:
            gate.touch()

    def run(self, env: StreamExecutionEnvironment, name: str) -> JobExecutionResult:
        """Execute the job, and kill its workers."""
        began = time.monotonic()
        with self._watching():
            result = env.execute(name)
        self.seconds = time.monotonic() - began
        return result

    def report(self, output: Path, wanted: Counter[Any]) -> int:
        """Compare the committed records with the wanted ones, and return the exit status."""
        files = sorted(output.glob("part-*"))
        lines = [line for path in files for line in path.read_text().splitlines()]
        found = Counter(tuple(json.loads(line)) for line in lines)
        lost, doubled = (wanted - found).total(), (found - wanted).total()
        print(f"workers killed {len(self.killed)} · restarts {self.restarts}")
        print(f"lost {lost} · doubled {doubled}")
        return 1 if lost or doubled or len(self.killed) < self._count else 0

    @contextmanager
    def _watching(self) -> Iterator[None]:
        with run_options(replace(current_options(), progress=self._take)):
            yield

    def _take(self, event: dict[str, Any]) -> None:
        match event["event"]:
            case "workers":
                self._workers, self._snapshots = event["pids"], 0
            case "restarted":
                self.restarts += 1
            case "snapshot" if len(self.killed) < self._count:
                self._snapshots += 1
                if self._snapshots == 2:
                    with suppress(ProcessLookupError):  # it may have ended by itself
                        os.kill(self._workers[-1], signal.SIGKILL)
                        self.killed.append(self._workers[-1])
                    if len(self.killed) == self._count:
                        self._gate.touch()
