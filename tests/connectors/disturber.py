"""Kill the processes of a job, and disturb its server at the same time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.testing.servers import Server
from tests.processes.harness import Killer, Settings


@dataclass
class Disturber(Killer):
    """Kills processes of the job, and also disturbs the server between the kills.

    Arguments:
        faults: what is done to the server, one of them at random after some snapshots.
        disturbances: how many of them in all.
        done: the names of those that were done.
    """

    faults: tuple[Callable[[], str], ...] = ()
    disturbances: int = 0
    done: list[str] = field(default_factory=list)
    _thread: threading.Thread | None = None

    def __call__(self, event: dict[str, Any]) -> None:
        super().__call__(event)
        idle = self._thread is None or not self._thread.is_alive()
        if event["event"] == "snapshot" and idle and len(self.done) < self.disturbances:
            self._thread = threading.Thread(target=self._disturb, daemon=True)
            self._thread.start()

    def _disturb(self) -> None:
        self.done.append(self.rng.choice(self.faults)())

    def settle(self) -> None:
        """Wait for the last disturbance."""
        if self._thread is not None:
            self._thread.join()


def disturber(seed: int, settings: Settings, kills: int, **options: Any) -> Disturber:
    """Return what kills a job so often, anywhere."""
    return Disturber(
        random.Random(seed),
        kills,
        ("worker", "jobmanager", "both"),
        after_snapshots=None,
        gate=settings.gate,
        **options,
    )


def freeze(server: Server, seconds: float = 0.3) -> Callable[[], str]:
    """Return a function that stops a server for a moment."""

    def run() -> str:
        server.pause()
        threading.Event().wait(seconds)
        server.resume()
        return "server stopped for a moment"

    return run
