"""A job goes on from a snapshot with other keys: `VersionedKeySelector`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock import (
    FileSink,
    GraphError,
    JsonLines,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    PenstockError,
    SnapshotWriter,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    VersionedKeySelector,
    open_snapshot,
)
from penstock.cli import main
from penstock.dataflow.program import RunOptions, run_options
from tests.processes.harness import committed
from tests.runtime.operators.state.test_golden_versions import Versioned

GOLDEN = Path(__file__).parents[1] / "golden"

NAMES = [f"User{number}" for number in range(40)]


class Seen(KeyedProcessFunction):
    """Counts the records of each key, in states of several kinds."""

    def open(self, context: Any) -> None:
        self.count = context.get_state(ValueStateDescriptor("count"))
        self.parts = context.get_map_state(MapStateDescriptor("parts"))
        self.list = context.get_list_state(ListStateDescriptor("list"))

    def process_element(self, value: str, context: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        self.list.add(value)
        yield [
            context.get_current_key(),
            self.count.value(),
            sorted(self.parts.items()),
            list(self.list.get()),
        ]


def saved(folder: Path, names: list[str] = NAMES) -> Path:
    """Write a snapshot with keys of version 1: names as they are written."""
    with SnapshotWriter(folder / "saved", "seen") as writer:
        seen = writer.operator("seen")
        for number, name in enumerate(names):
            seen.put("count", name, number)
            seen.put_map("parts", name, {number: name})
            seen.put_list("list", name, [name])
    return folder / "saved"


def run(folder: Path, keys: Any, resume: Path, names: list[str], parallelism: int = 2) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().enable_checkpointing(50)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    env.set_in_process()
    env.set_parallelism(parallelism)
    records = env.from_collection(names).uid("names")
    records.key_by(keys).process(Seen()).uid("seen").sink_to(
        FileSink(folder / "out", JsonLines())
    ).uid("out")
    with run_options(RunOptions(resume=str(resume), fork=True)):
        env.execute("seen")


def by_lower(version: int = 2, **more: Any) -> VersionedKeySelector:
    return VersionedKeySelector(lambda name: name.lower(), version, **more)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_the_state_of_each_key_moves_to_its_new_key(tmp_path: Path, parallelism: int):
    keys = by_lower(migrate_key=str.lower)
    run(tmp_path, keys, saved(tmp_path), NAMES, parallelism)
    assert sorted(committed(tmp_path / "out")) == sorted(
        [name.lower(), number + 1, [[number, name]], [name, name]]
        for number, name in enumerate(NAMES)
    )
    with open_snapshot(tmp_path / "job") as snapshot:
        assert [one.key_version for one in snapshot.operators if one.uid == "seen"] == [2]
        assert snapshot.get("seen", "count", "user7") == 8
        assert snapshot.get("seen", "count", "User7") is None


def test_keys_that_become_one_are_merged(tmp_path: Path):
    def merge(one: Any, other: Any) -> Any:
        return one + other

    keys = by_lower(migrate_key=str.lower, merge=merge)
    run(tmp_path, keys, saved(tmp_path, ["ada", "Ada", "bob"]), ["ADA"])
    [[key, count, parts, names]] = committed(tmp_path / "out")
    assert (key, count) == ("ada", 0 + 1 + 1)
    assert parts == [[0, "ada"], [1, "Ada"]]
    assert sorted(names) == ["ADA", "Ada", "ada"]


def test_keys_that_become_one_without_a_merge_are_refused_with_both_names(tmp_path: Path):
    keys = by_lower(migrate_key=str.lower)
    with pytest.raises(PenstockError, match=r"'ada' and 'Ada'|'Ada' and 'ada'") as caught:
        run(tmp_path, keys, saved(tmp_path, ["ada", "Ada"]), ["ADA"])
    assert "become 'ada'" in str(caught.value) and "merge=" in str(caught.value)


def test_a_key_that_cannot_be_converted_is_named(tmp_path: Path):
    def fail(key: str) -> str:
        raise ValueError(f"no such user: {key}")

    with pytest.raises(PenstockError, match=r"'User0' could not be converted.*no such user"):
        run(tmp_path, by_lower(migrate_key=fail), saved(tmp_path, ["User0"]), ["x"], 1)


def test_other_versions_without_a_function_and_newer_ones_are_refused(tmp_path: Path):
    with pytest.raises(GraphError, match=r"version 1 in the snapshot, and 2.*migrate_key="):
        run(tmp_path, by_lower(), saved(tmp_path), NAMES)
    run(tmp_path, by_lower(migrate_key=str.lower), tmp_path / "saved", NAMES)
    with pytest.raises(GraphError, match="version 2 in the snapshot, and 1"):
        run(tmp_path / "back", str.lower, tmp_path / "job", NAMES)


def test_a_job_with_migrated_keys_is_resumed_without_a_second_migration(tmp_path: Path):
    run(tmp_path, by_lower(migrate_key=str.lower), saved(tmp_path), NAMES)

    def never(key: str) -> str:
        raise AssertionError("converted again")

    run(tmp_path / "next", by_lower(migrate_key=never), tmp_path / "job", NAMES)


def test_the_arguments_are_checked():
    for arguments, text in [
        ((len, 0), "from 1 on"),
        ((len, "2"), "from 1 on"),
        ((len, 2, "lower"), "migrate_key is a function"),
        ((len, 2, None, max), "give both"),
    ]:
        with pytest.raises(GraphError, match=text):
            VersionedKeySelector(*arguments)  # type: ignore[arg-type]


# ---- snapshots of earlier releases, and of this one


def test_keys_of_a_golden_snapshot_without_versions_are_converted(tmp_path: Path):
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.set_in_process(True)
    env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "job")
    names = VersionedKeySelector(
        lambda value: ("even", "odd")[value % 2], 2, lambda key: ("even", "odd")[key]
    )
    keyed = env.from_collection([5]).uid("more").key_by(names).process(Versioned(2)).uid("states")
    options = RunOptions(resume=str(GOLDEN / "versions"), fork=True, allow_dropped=True)
    with run_options(options):
        assert list(keyed.execute_and_collect()) == [("odd", 4 + 5, 3, [1, 2, 3, 5])]


def write() -> None:
    """Write the golden folder `keys`, whose keys have version 2."""
    folder = GOLDEN / "keys"
    shutil.rmtree(folder, ignore_errors=True)
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.set_in_process(True).enable_checkpointing(1_000_000)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder)
    keyed = env.from_collection(["Ada", "Bob", "ada"]).uid("names").key_by(by_lower())
    list(keyed.process(Seen()).uid("seen").execute_and_collect())


def test_keys_of_the_golden_snapshot_with_a_version_are_converted(tmp_path: Path):
    with open_snapshot(GOLDEN / "keys") as snapshot:
        versions = {one.uid: one.key_version for one in snapshot.operators}
        assert versions["seen"] == 2 and versions["names"] == 1
        assert snapshot.get("seen", "count", "ada") == 2
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
    env.set_in_process(True)
    env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "job")
    by_letter = VersionedKeySelector(lambda name: name[0].lower(), 3, lambda key: key[0])
    keyed = env.from_collection(["Bea"]).uid("more").key_by(by_letter).process(Seen()).uid("seen")
    options = RunOptions(resume=str(GOLDEN / "keys"), fork=True, allow_dropped=True)
    with run_options(options):
        assert list(keyed.execute_and_collect()) == [["b", 2, [], ["Bob", "Bea"]]]


def test_large_state_is_converted_from_a_database(tmp_path: Path):
    names = [f"User{number:05}" for number in range(5_000)]
    env = StreamExecutionEnvironment.get_execution_environment().enable_checkpointing(1_000)
    env.get_checkpoint_config().set_checkpoint_storage_dir(tmp_path / "before")
    env.set_in_process(True).set_parallelism(2)
    env.config.inline_threshold = 0
    records = env.from_collection(names).uid("names")
    records.key_by(lambda name: name).process(Seen()).uid("seen").filter(lambda row: False).print()
    env.execute("seen")
    run(tmp_path, by_lower(migrate_key=str.lower), tmp_path / "before", names[:7], 3)
    with open_snapshot(tmp_path / "job") as snapshot:
        counts = {one.key: one.value for one in snapshot.entries("seen", "count")}
    # The source of the first job has read all of its input.
    assert counts == {name.lower(): 1 for name in names}


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ("2, str.lower, max", 0, "version 1 in the snapshot, and 2"),
        ("2, str.lower", 1, "'ada' and 'Ada' become 'ada'"),
        ("2, int", 1, "cannot be converted: ValueError"),
        ("2", 1, "migrate_key="),
    ],
)
def test_the_check_of_a_program_says_what_becomes_of_its_keys(
    tmp_path: Path, arguments: str, code: int, text: str
):
    with SnapshotWriter(tmp_path / "saved", "seen") as writer:
        for name in ("Ada", "ada"):
            writer.operator("count", "keyed_count").put("value", name, 1)
    (tmp_path / "job.py").write_text(
        "from penstock import *\n"
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        f"keys = VersionedKeySelector(str.lower, {arguments})\n"
        "env.from_collection(['a']).uid('names').key_by(keys).count().uid('count').print()\n"
        "env.execute('seen')\n"
    )
    words = ["snapshots", "check", str(tmp_path / "job.py"), str(tmp_path / "saved")]
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == code, done.output
    found = {one["uid"]: one for one in json.loads(done.stdout)["operators"]}["count"]
    assert found["outcome"] == ("migrated" if code == 0 else "refused")
    assert any(
        text in reason.replace("'Ada' and 'ada'", "'ada' and 'Ada'") for reason in found["reasons"]
    )
