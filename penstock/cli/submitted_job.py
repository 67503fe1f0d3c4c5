"""Follow a job of the service to its end, also through a restart of the service."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from penstock.cli.options import print_message
from penstock.cli.script import Detached
from penstock.cli.service_address import ServiceAddress
from penstock.dataflow.errors import PenstockError
from penstock.runtime.client.job_report import JobMonitor
from penstock.runtime.control.requests import Events, Show

#: The text that is reported if the service closes the connection before the job has ended.
SERVICE_GONE = (
    "is out of sight, since the job manager is gone; its job goes on. Start the job manager again, "
    "and see: penstock list"
)
#: The time for which `submit` waits for another job service if its own one ends, in seconds.
RETURN_SECONDS = 60.0
#: The pause between two attempts to connect to it, in seconds.
RETURN_PAUSE_SECONDS = 0.2


class SubmittedJob:
    """A job that was submitted to the service, and whose events are followed.

    Arguments:
        service: where the service is.
        id: the id of the job.
        monitor: handles the events.
    """

    def __init__(self, service: ServiceAddress, id: str, monitor: JobMonitor) -> None:
        self._service, self._id, self._monitor = service, id, monitor

    def follow(self, events: Iterator[dict[str, Any]]) -> str:
        """Handle events until the job has ended, and return a text that says how it ended.

        Raises `Detached` if a signal interrupts the wait. The job then continues to run.

        Arguments:
            events: the events that the service sends. They end with the service.
        """
        last = 0
        try:
            while True:
                with suppress(PenstockError):
                    for event in events:
                        last = event.get("seq", last)
                        if event["event"] == "ended":
                            return str(event["how"])
                        self._monitor.handle(event)
                found = self._find_again(last)
                if found is None:
                    return SERVICE_GONE
                events, state = found
                if state is not None:
                    for event in events:
                        self._monitor.handle(event)
                    return f"has ended; the job is {state}"
        except (KeyboardInterrupt, SystemExit) as signal:
            where = "".join(f" {word}" for word in self._service.words())
            print_message(
                f"job {self._id} goes on; stop it with: penstock cancel {self._id}{where}"
            )
            raise Detached(130 if isinstance(signal, KeyboardInterrupt) else 143) from None

    def _find_again(self, last: int) -> tuple[Iterator[dict[str, Any]], str | None] | None:
        """Find the job again, and wait for the next service at most for `RETURN_SECONDS`.

        Arguments:
            last: the number of the last event of the job that was received.

        Returns:
            The events after that, and the state of the job if it has ended. None if no service
            comes.
        """
        until = time.monotonic() + RETURN_SECONDS
        told = False
        while time.monotonic() < until:
            with suppress(PenstockError), self._service.connect() as connection:
                state = connection.ask(Show(self._id))["job"]["state"]
                active = state in ("queued", "running")
                if active and not told:
                    print_message(f"the connection was lost; job {self._id} goes on")
                events = self._service.connect().answers(Events(self._id, last, active))
                return events, None if active else state
            if not told:
                told = True
                print_message(f"the job manager is gone; job {self._id} goes on without it")
            time.sleep(RETURN_PAUSE_SECONDS)
        return None
