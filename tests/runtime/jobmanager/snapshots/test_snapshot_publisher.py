"""Parts of a job restart from a snapshot that is complete, and that is kept while it is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from penstock import StreamExecutionEnvironment
from penstock.dataflow.config import JobConfig
from penstock.dataflow.errors import Recoverability, StoreError
from penstock.dataflow.graph.compile import compile_graph
from penstock.runtime.jobmanager.snapshots.job_store import JobStore
from penstock.runtime.jobmanager.snapshots.pending_commits import PendingCommits
from penstock.runtime.jobmanager.snapshots.pending_snapshot import PendingSnapshot
from penstock.runtime.jobmanager.snapshots.record_classes import RecordClasses
from penstock.runtime.jobmanager.snapshots.snapshot_publisher import SnapshotPublisher
from penstock.snapshot.protocols.events import SnapshotKind
from penstock.snapshot.storage.store import Store

RESTARTED, OTHER = frozenset({"restarted"}), frozenset({"other"})


async def at_once(function: Callable[[], Any]) -> Any:
    return function()


class Publisher:
    """Publishes snapshots of a job with two regions, of which the newest one is kept."""

    def __init__(self, files: Any) -> None:
        config = JobConfig(name="job", retained=1)
        self.files = files
        self.files.open("job")
        self.files.lock()
        self.files.reserve_numbers(10)
        env = StreamExecutionEnvironment.get_execution_environment()
        for uid in (*RESTARTED, *OTHER):
            env.from_sequence(1, 9).uid(uid).print()

        async def recorded(_: Any) -> None:
            raise AssertionError("there is no output")

        self.publisher = SnapshotPublisher(
            config,
            JobStore(self.files, at_once, True),
            PendingCommits({}, {}, {}, at_once, recorded),
            compile_graph(env._graph, env.config),
            RecordClasses(()),
            lineage="0a1b2c3d",
            parent=None,
            own=True,
            adopted=False,
        )

    async def publish(self, number: int, absent: frozenset[str] = frozenset()) -> None:
        """Publish a snapshot in which some operators have no part, and remove older ones."""
        snapshot = PendingSnapshot(number, SnapshotKind.CHECKPOINT, 0.0, 0)
        self.files.create_folder(number)
        await self.publisher.publish(snapshot, attempt=0, finished=False, absent=absent)
        await self.publisher.tidy([])

    @property
    def kept(self) -> list[int]:
        """The numbers of the snapshots that are there."""
        return [int(number) for number in self.files.published()]


def test_a_snapshot_is_kept_until_those_that_restarted_from_it_have_a_part_in_another(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        publisher = Publisher(Store(tmp_path / "job"))
        await publisher.publish(1)
        await publisher.publish(2)
        assert publisher.kept == [2]
        restored = await publisher.publisher.restore_part(RESTARTED)
        assert restored is not None
        assert restored.manifest.number == 2
        # It ran again before this one was complete, and may still read its records in flight.
        await publisher.publish(3, absent=RESTARTED)
        await publisher.publish(4, absent=RESTARTED | OTHER)
        assert publisher.kept == [2, 4]
        await publisher.publish(5, absent=OTHER)
        assert publisher.kept == [5]

    trio.run(main)


def test_a_second_restart_keeps_the_later_snapshot_instead(tmp_path: Path) -> None:
    async def main() -> None:
        publisher = Publisher(Store(tmp_path / "job"))
        await publisher.publish(1)
        await publisher.publisher.restore_part(RESTARTED)
        await publisher.publish(2, absent=RESTARTED)
        await publisher.publisher.restore_part(RESTARTED)
        await publisher.publish(3, absent=RESTARTED)
        assert publisher.kept == [2, 3]
        await publisher.publisher.restore_newest()
        await publisher.publish(4)
        assert publisher.kept == [4]

    trio.run(main)


def test_no_part_restarts_while_it_is_unknown_whether_a_later_snapshot_is_complete(
    tmp_path: Path,
) -> None:
    class Doubtful(Store):
        in_doubt = False

    async def main() -> None:
        publisher = Publisher(Doubtful(tmp_path / "job"))
        await publisher.publish(1)
        # The answer to the put of snapshot 2 was lost.
        publisher.files.in_doubt = True
        with pytest.raises(StoreError, match="whole job restarts") as raised:
            await publisher.publisher.restore_part(RESTARTED)
        assert raised.value.recoverability is Recoverability.ENVIRONMENT
        publisher.files.in_doubt = False
        assert await publisher.publisher.restore_part(RESTARTED) is not None

    trio.run(main)
