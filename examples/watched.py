"""What the examples of loops share: their options, and a job that is watched and may be hit.

`--kill-worker-after SECONDS` kills one worker with SIGKILL, at the first snapshot from then on
that holds records of the loop. The job goes back to its newest snapshot and on from there, and
its results must be the same.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from penstock import StreamExecutionEnvironment
from penstock.dataflow.program import current_options, run_options


def options(description: str) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parallelism", "-p", type=int, default=2, help="workers, 2 if not given")
    parser.add_argument("--checkpoint-dir", help="keep snapshots here, not in a temporary folder")
    parser.add_argument(
        "--kill-worker-after",
        type=float,
        metavar="SECONDS",
        help="kill a worker once, when so long has passed since the start and the loop has records",
    )
    return parser.parse_args()


def environment(given: argparse.Namespace) -> StreamExecutionEnvironment:
    """Return an environment with the options of the command line and frequent snapshots."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(given.parallelism)
    env.enable_checkpointing(20)  # milliseconds
    if given.checkpoint_dir is not None:
        env.get_checkpoint_config().set_checkpoint_storage_dir(given.checkpoint_dir)
    return env


class Watch:
    """Follows the events of a job, and kills one of its workers if that is wanted.

    Arguments:
        kill_after: seconds; None kills nobody.
    """

    def __init__(self, kill_after: float | None) -> None:
        self._kill_after = kill_after
        self._workers: list[int] = []
        self._restarts: list[dict[str, Any]] = []
        self._began = time.monotonic()
        self.seconds = 0.0

    def take(self, event: dict[str, Any]) -> None:
        """Take an event of the job."""
        self.seconds = time.monotonic() - self._began
        match event["event"]:
            case "workers":
                self._workers = event["pids"]
            case "restarted":
                self._restarts.append(event)
            case "snapshot" if self._kill_after is not None:
                if event["log_records"] and self.seconds >= self._kill_after:
                    # The job may have ended since it said this.
                    with suppress(ProcessLookupError):
                        os.kill(self._workers[-1], signal.SIGKILL)
                        self._kill_after = None

    def tell(self, what: str, equal: bool) -> int:
        """Print how it went; returns the exit code."""
        verdict = "equal to networkx" if equal else "DIFFERENT FROM NETWORKX"
        print(f"{what} · {verdict} · {self.seconds:.1f} s")
        if self._kill_after is not None:
            print("nobody was killed: no snapshot from then on had records of the loop")
            return 1
        if self._restarts:
            logs = ", ".join(f"{restart['log_records']:,}" for restart in self._restarts)
            print(f"restarts {len(self._restarts)} · records in the restored log {logs}")
        return 0 if equal else 1


@contextmanager
def watched(given: argparse.Namespace) -> Iterator[Watch]:
    """Watch the jobs that are executed in this block."""
    watch = Watch(given.kill_worker_after)
    before = current_options()

    def take(event: dict[str, Any]) -> None:
        if before.progress is not None:
            before.progress(event)
        watch.take(event)

    with run_options(replace(before, progress=take)):
        yield watch
