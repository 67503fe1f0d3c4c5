"""Sources are notified of complete snapshots, in the JobManager and in the workers."""

import json
import random
from pathlib import Path
from typing import Any

from penstock import PollingSource, SplitPoller, StreamExecutionEnvironment, WatermarkStrategy
from tests.processes.harness import Killer, run
from tests.processes.parts import has_let_all_go, let_all_go

#: The number of records of each split, if the gate is open.
COUNT = 200


class Noticing(PollingSource):
    """Two splits that end when the gate is opened. It writes down the notices."""

    bounded = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def splits(self) -> list[str]:
        return ["a", "b"]

    def create_poller(self, split: Any) -> SplitPoller:
        return _Poller(self.folder, split.id)

    def snapshot_completed(self, positions: Any) -> None:
        write(self.folder / "jobmanager", {split.id: position for split, position in positions})


class _Poller(SplitPoller):
    def __init__(self, folder: Path, split: str) -> None:
        self.folder, self.split = folder, split

    def seek(self, position: Any) -> None:
        self.next = position or 0

    def poll(self, max_records: int) -> list[int] | None:
        if has_let_all_go(self.folder / "gate") and self.next >= COUNT:
            return None
        self.next += 1
        return [self.next]

    def position(self) -> int:
        return self.next

    def snapshot_completed(self, position: Any) -> None:
        write(self.folder / f"worker-{self.split}", position)


def write(path: Path, value: Any) -> None:
    with path.open("a") as file:
        file.write(json.dumps(value) + "\n")


def notices(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_notices_come_in_order_and_go_on_after_a_kill(tmp_path: Path):
    def job() -> StreamExecutionEnvironment:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_parallelism(2)
        env.enable_checkpointing(20)
        env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "job")
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
            lambda number, _: number
        )
        env.from_source(Noticing(tmp_path), strategy).uid("numbers").map(lambda n: n).uid("same")
        return env

    killer = Killer(random.Random(1), kills=1)
    at_kill: list[int] = []

    def progress(event: dict[str, Any]) -> None:
        killer(event)
        if killer.killed and event["event"] == "restarting":
            at_kill.append(len(notices(tmp_path / "jobmanager")))
        enough = at_kill and len(notices(tmp_path / "jobmanager")) > at_kill[0] + 3
        if enough and all(len(notices(tmp_path / f"worker-{name}")) > 1 for name in "ab"):
            let_all_go(tmp_path / "gate")

    run(job(), progress=progress)
    assert killer.killed and at_kill
    seen = notices(tmp_path / "jobmanager")
    for split in ("a", "b"):
        found = [one[split] for one in seen if split in one]
        assert all(position is None or type(position) is int for position in found)
        # A snapshot before the first read has no position.
        positions = [position or 0 for position in found]
        assert positions and positions == sorted(positions) and positions[-1] > 0
        in_worker = [position or 0 for position in notices(tmp_path / f"worker-{split}")]
        # With the attempt that was killed, one notice to the JobManager's side may be missing.
        assert in_worker and len(set(in_worker) - {*positions, 0}) <= len(killer.killed) == 1


def test_an_error_of_a_notice_restarts_the_job(tmp_path: Path):
    class Failing(Noticing):
        def snapshot_completed(self, positions: Any) -> None:
            super().snapshot_completed(positions)
            if len(notices(self.folder / "jobmanager")) < 3:
                raise OSError("the broker is away")
            let_all_go(self.folder / "gate")

    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(20)
    env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "job")
    env.from_source(Failing(tmp_path)).uid("numbers").map(lambda n: n).uid("same")
    events: list[dict[str, Any]] = []
    run(env, progress=events.append)
    reasons = [str(event) for event in events if event["event"] == "restarting"]
    assert len(reasons) == 2
    assert all("the broker is away" in reason for reason in reasons)
