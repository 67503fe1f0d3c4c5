"""A snapshot is read while its job runs, and while its workers are killed."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import SavedSnapshot, StoreError, open_snapshot
from penstock.snapshot.storage.job_paths import JobPaths
from penstock.snapshot.storage.leases import leased_numbers
from penstock.snapshot.storage.store import Store
from tests.processes.harness import WORDS, Killer, Settings, counting_job, expected_words, run
from tests.processes.parts import let_all_go, let_go

COUNT = 30_000


def counted(snapshot: SavedSnapshot) -> dict[str, int]:
    return {entry.key: entry.value[1] for entry in snapshot.entries("count")}


def words_read(snapshot: SavedSnapshot) -> Counter[str]:
    """Return how often each word was read, by the positions of the sources."""
    # Split i of 2 has the numbers i, i + 2, … A split that is read to its end is not listed.
    ends = {one.split: one.position for one in snapshot.sources()}
    numbers = (n for i in (0, 1) for n in range(i, ends.get(str(i), COUNT) or i, 2))
    return Counter(f"word{n * 7919 % WORDS}" for n in numbers)


@pytest.mark.slow
@pytest.mark.parametrize("inline_threshold", [0, 1 << 16])
def test_each_snapshot_of_a_job_is_consistent_while_the_job_runs(tmp_path, inline_threshold):
    settings = Settings(
        tmp_path, count=COUNT, rate=None, interval_ms=40, inline_threshold=inline_threshold, parts=6
    )
    env = counting_job(settings)
    env.get_checkpoint_config().set_retained_checkpoints(1)
    held: list[SavedSnapshot] = []
    totals: list[int] = []
    killer = Killer(random.Random(3), kills=2)

    def watch(event: dict[str, Any]) -> None:
        killer(event)
        if event["event"] != "snapshot":
            return
        let_go(settings.gate)
        # The job may have removed the snapshot already.
        try:
            snapshot = open_snapshot(settings.job)
        except StoreError:
            return
        assert counted(snapshot) == words_read(snapshot)
        totals.append(sum(counted(snapshot).values()))
        if held:
            snapshot.close()
        else:
            held.append(snapshot)
        if len(totals) > 5:
            let_all_go(settings.gate)

    try:
        run(env, progress=watch)
    finally:
        let_all_go(settings.gate)
    (first,) = held
    assert killer.killed and len(totals) > 1
    # The first snapshot is still there, although the job keeps one checkpoint only.
    assert leased_numbers(JobPaths(Path(settings.job))) == {first.number}
    assert counted(first) == words_read(first)
    assert first.verify()["entries"] == len(counted(first))
    first.close()
    numbers = [info.number for info in Store(Path(settings.job)).list() if info.published]
    assert first.number in numbers
    with open_snapshot(settings.job) as last:
        assert last.kind == "final"
        assert counted(last) == expected_words(settings)
