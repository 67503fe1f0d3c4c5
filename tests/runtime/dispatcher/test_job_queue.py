"""Which jobs of a queue may start, and why the others wait."""

from __future__ import annotations

import pytest

from penstock.runtime.dispatcher.job_queue import Limits, runnable
from penstock.runtime.dispatcher.job_registry import JobRecord

MIB = 1 << 20


def job(id: int, slots: int = 1, memory: int = 0, scope: str = "job") -> JobRecord:
    return JobRecord(str(id), "job", slots=slots, memory_bytes=memory * MIB, restart_scope=scope)


def decided(
    queue: list[JobRecord], running: list[JobRecord], limits: Limits
) -> tuple[list[str], dict[str, str]]:
    starting, waiting = runnable(queue, running, limits)
    return [one.id for one in starting], waiting


def test_without_limits_all_jobs_start():
    assert decided([job(1, 100), job(2)], [job(3, 50)], Limits()) == (["1", "2"], {})


def test_a_small_job_does_not_overtake_a_large_one():
    queue = [job(2), job(3, 4), job(4)]
    starting, waiting = decided(queue, [job(1, 2)], Limits(slots=4))
    assert starting == ["2"]
    assert waiting == {
        "3": "it needs 4 slots, and 3 of 4 slots are taken by jobs 1, 2",
        "4": "job 3 is before it",
    }


def test_jobs_wait_for_memory():
    limits = Limits(memory_bytes=1000 * MIB, memory_per_slot=300 * MIB)
    starting, waiting = decided([job(2, 2), job(3)], [job(1, memory=200)], limits)
    assert starting == ["2"]
    assert waiting == {
        "3": "it needs 300 MiB, and 800 MiB of 1,000 MiB are kept for jobs 1, 2",
    }


@pytest.mark.parametrize(
    ("limits", "wanted", "reason"),
    [
        (Limits(slots=3), job(1, 4), "it needs 4 slots, and the service has 3 slots"),
        (
            Limits(slots=3),
            job(1, 4, scope="task"),
            "it needs 4 slots (one for each task), and the service has 3 slots",
        ),
        (
            Limits(memory_bytes=1024 * MIB),
            job(1, 4, scope="region"),
            "it needs 2,048 MiB for 4 workers (each region has its own), and the service has "
            "1,024 MiB",
        ),
        (Limits(slots=1), job(1, 2), "it needs 2 slots, and the service has 1 slot"),
        (
            Limits(memory_bytes=100 * MIB),
            job(1, memory=101),
            "it needs 101 MiB, and the service has 100 MiB",
        ),
        (Limits(slots=2, memory_bytes=1024 * MIB), job(1, 2), None),
    ],
)
def test_a_job_that_never_fits_is_found_out(limits: Limits, wanted: JobRecord, reason: str | None):
    assert limits.why_never(wanted) == reason
