"""Answer requests to a job service, for its own protocol and for HTTP: `answers`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from penstock.runtime.control.requests import (
    Cancel,
    Events,
    ListJobs,
    Logs,
    QueryState,
    Refused,
    Request,
    Rescale,
    Restart,
    SampleEdge,
    Savepoint,
    Show,
    Stop,
    SubmitScript,
    Upgrade,
    UpgradeScript,
)
from penstock.runtime.dispatcher.control_plane import ControlPlane

#: The requests that change nothing.
READING = (ListJobs, Show, Logs, Events, QueryState)


async def answers(control: ControlPlane, request: Request) -> AsyncGenerator[dict[str, Any], None]:
    """Carry a request out, and yield the answers. Each has its kind as `event`.

    Only the requests for logs and events have more than one answer, or none.

    Arguments:
        control: the operations of the service.
        request: the request.

    Raises:
        Refused: if the service refuses the request.
    """
    match request:
        case ListJobs():
            yield {"event": "jobs", "jobs": _jobs(control, request.activity)}
        case Show():
            yield {"event": "job", **asdict(control.show(request))}
        case SubmitScript():
            record = await control.submit_script(request)
            yield {"event": "submitted", "id": record.id, "log": record.log}
        case UpgradeScript():
            record, output = await control.upgrade_script(request)
            yield {"event": "upgraded", **asdict(record), "output": output}
        case Cancel():
            yield {"event": "cancelled", **asdict(await control.cancel(request))}
        case Stop():
            yield {"event": "stopped", **asdict(await control.stop(request))}
        case Savepoint():
            yield {"event": "savepoint", **asdict(await control.savepoint(request))}
        case QueryState() | SampleEdge():
            yield await control.query(request)
        case Rescale():
            yield {"event": "rescaled", **asdict(await control.rescale(request))}
        case Upgrade():
            yield {"event": "upgraded", **asdict(await control.upgrade(request))}
        case Restart():
            yield {"event": "restarted", **asdict(await control.restart(request))}
        case Logs():
            async with aclosing(control.logs(request)) as parts:
                async for part in parts:
                    yield {"event": "log", "part": part}
        case Events():
            async with aclosing(control.events(request)) as events:
                async for event in events:
                    yield event
        case _:
            raise Refused(f"a {type(request).__name__} cannot be requested here")


def _jobs(control: ControlPlane, with_activity: bool) -> list[dict[str, Any]]:
    jobs = [asdict(job) for job in control.list()]
    if with_activity:
        activity = control.activity()
        for job in jobs:
            found = activity.get(job["id"])
            job["activity"] = None if found is None else asdict(found)
    return jobs
