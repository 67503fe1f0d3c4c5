"""Snapshots are written and edited as data, and jobs go on from them."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from penstock import (
    GraphError,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    SnapshotWriter,
    StoreError,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
    open_snapshot,
)
from penstock.dataflow.program import RunOptions, run_options
from penstock.saved.diff import compare
from tests.snapshot.state.test_golden_states import FORMS, GOLDEN


class Account(NamedTuple):
    user: str
    amount: int


@dataclass
class Profile:
    name: str
    tags: list[str]


class Bank(KeyedProcessFunction):
    """Adds amounts to the balance of a user, and returns all that it knows of the user."""

    def open(self, context):
        self.balance = context.get_state(ValueStateDescriptor("balance"))
        self.seen = context.get_list_state(ListStateDescriptor("seen"))
        self.pages = context.get_map_state(MapStateDescriptor("pages"))

    def process_element(self, record, context):
        user, amount = record
        self.balance.update((self.balance.value() or 0) + amount)
        self.seen.add(amount)
        self.pages.put("/", (self.pages.get("/") or 0) + 1)
        yield user, self.balance.value(), list(self.seen.get()), dict(self.pages.items())

    def on_timer(self, timestamp, context):
        yield context.get_current_key(), "timer", timestamp, None


def run(folder: Path, records: list[Any], resume: Path | None = None, parallelism=1) -> list[Any]:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    env.set_in_process(True).enable_checkpointing(20)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(folder))
    for kind in (Account, Profile):
        env.register_type(kind)
    keyed = env.from_collection(records).uid("records").key_by(lambda record: record[0])
    options = RunOptions(resume=None if resume is None else str(resume), fork=resume is not None)
    with run_options(options):
        return sorted(keyed.process(Bank()).uid("bank").execute_and_collect(), key=repr)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_job_counts_on_from_written_state(tmp_path, parallelism):
    with SnapshotWriter(tmp_path / "bootstrap", "bank") as writer:
        bank = writer.operator("bank")
        bank.put_all("balance", {"ada": 100, "bob": 7}.items())
        bank.put_list("seen", "ada", [60, 40])
        bank.put_map("pages", "ada", {"/": 2, "/x": 1})
        bank.add_timer("bob", 5)
    with open_snapshot(tmp_path / "bootstrap") as snapshot:
        assert snapshot.get("bank", "balance", "ada") == 100
        assert snapshot.get("bank", "timers/event-time", "bob") == {(5, None): 2}
        assert snapshot.verify()["entries"] == 7
    records = [("ada", 1), ("bob", 2), ("cy", 3)]
    out = run(tmp_path / "job", records, tmp_path / "bootstrap", parallelism)
    assert out == [
        ("ada", 101, [60, 40, 1], {"/": 3, "/x": 1}),
        ("bob", "timer", 5, None),
        ("bob", 9, [2], {"/": 1}),
        ("cy", 3, [3], {"/": 1}),
    ]


def test_state_is_loaded_from_tables(tmp_path):
    pytest.importorskip("pandas")
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    table = pa.table({"user": ["ada", "bob"], "city": ["A", "B"], "amount": [5, 6]})
    parquet.write_table(table, tmp_path / "accounts.parquet")
    with SnapshotWriter(tmp_path / "out", "bank", classes=[Account]) as writer:
        bank = writer.operator("bank")
        assert bank.load("a", table, key="user", value="amount") == 2
        frame, columns, file = table.to_pandas(), ["user", "amount"], tmp_path / "accounts.parquet"
        assert bank.load("b", frame, key=["user", "city"], value=["amount", "user"]) == 2
        spark = SimpleNamespace(toArrow=lambda: table)  # as a data frame of Spark 4
        assert bank.load("d", spark, key="user", value="amount") == 2
        assert bank.load("c", str(file), key="user", value=columns, as_=Account) == 2
        with pytest.raises(GraphError, match="no column 'x'; it has user, city, amount"):
            bank.load("a", table, key="x", value="amount")
        with pytest.raises(GraphError, match="not from a list; pairs of keys and values are for"):
            bank.load("a", [1], key="x", value="amount")
    with open_snapshot(tmp_path / "out") as snapshot:
        assert snapshot.get("bank", "a", "bob") == 6
        assert snapshot.get("bank", "b", ("ada", "A")) == (5, "ada")
        assert snapshot.get("bank", "c", "ada") == Account("ada", 5)
        assert snapshot.get("bank", "c", "ada").amount == 5


def test_large_state_is_written_to_files(tmp_path):
    rng = random.Random(7)
    content = {f"key{n}": rng.randbytes(100) for n in range(3000)}
    with SnapshotWriter(tmp_path / "out", "large") as writer:
        writer.operator("op").put_all("value", content.items())
        writer.operator("op").put_operator_list("list", list(content.values()))
    with open_snapshot(tmp_path / "out") as snapshot:
        assert {e.key: e.value for e in snapshot.entries("op", "value")} == content
        assert [e.value for e in snapshot.entries("op", "list")] == list(content.values())
        assert snapshot.verify()["files"] > 2


@pytest.mark.parametrize("form", FORMS)
def test_a_golden_snapshot_is_edited(tmp_path, form):
    with SnapshotWriter.edit(GOLDEN / form, tmp_path / "edited") as writer:
        operator = writer.operator("sum")
        operator.put("value", "b", "new")
        operator.put_list("list", "b", [7])
        operator.add_to_map("map", "b", {"z": 26})
        operator.put_map("map", 7, {})
        operator.delete("value", ("c", 1))
        assert operator.transform("recent", lambda key, value: value.upper()) == 1
        operator.drop("windows")
    with open_snapshot(GOLDEN / form) as old, open_snapshot(tmp_path / "edited") as new:
        assert new.get("sum", "value", "b") == "new"
        assert new.get("sum", "value", ("c", 1)) is None
        assert new.get("sum", "list", "b") == [7]
        assert new.get("sum", "map", "b") == {"x": {"y": 1}, ("t", 1): None, "z": 26}
        assert new.get("sum", "map", 7) is None
        assert new.get("sum", "recent", "b") == {"page": "/A"}
        assert [one.last_used_ms for one in new.find("sum", "recent", "b")] == [1_000_000]
        assert old.get("sum", "value", "b") == [1, "two"]
        assert new.manifest.parent == (old.manifest.lineage, old.manifest.number)
        assert new.manifest.lineage != old.manifest.lineage
        states = {(one.after or one.before).state for one in compare(old, new)}
        assert states == {"value", "list", "map", "recent", "windows"}
        assert new.verify()


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_edited_stays(tmp_path, form):
    with SnapshotWriter.edit(GOLDEN / form, tmp_path / "edited"):
        pass
    with open_snapshot(GOLDEN / form) as old, open_snapshot(tmp_path / "edited") as new:
        assert list(compare(old, new)) == []
        assert old.manifest.handles == new.manifest.handles


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_counts_on_from_an_edited_snapshot(tmp_path, parallelism):
    records = [(f"user{n % 10}", n) for n in range(100)]
    run(tmp_path / "job", records, parallelism=2)
    with SnapshotWriter.edit(tmp_path / "job", tmp_path / "edited") as writer:
        bank = writer.operator("bank")
        bank.put("balance", "user3", 1000)
        bank.transform("pages", lambda key, count: count * 10 if key == "user4" else count)
        bank.delete("seen", "user5")
        writer.drop("records")  # the source begins again
    more = [("user3", 1), ("user4", 1), ("user5", 1)]
    out = run(tmp_path / "fork", more, tmp_path / "edited", parallelism)
    assert out[0][:2] == ("user3", 1001)
    assert out[1][3] == {"/": 101}
    assert out[2][2] == [1] and out[2][1] == sum(range(5, 100, 10)) + 1


def test_records_of_classes_that_are_not_there_are_edited(tmp_path):
    profiles = {"ada": Profile("Ada", ["x"]), "bob": Profile("Bob", [])}
    with SnapshotWriter(tmp_path / "one", "p", classes=[Profile]) as writer:
        writer.operator("op").put_all("profile", profiles.items())
    with SnapshotWriter.edit(tmp_path / "one", tmp_path / "two") as writer:
        writer.operator("op").transform(
            "profile", lambda key, row: row._replace(tags=[*row.tags, "new"])
        )
    with open_snapshot(tmp_path / "two", classes=[Profile]) as snapshot:
        assert snapshot.get("op", "profile", "ada") == Profile("Ada", ["x", "new"])
    with open_snapshot(tmp_path / "two") as snapshot:
        assert snapshot.get("op", "profile", "bob") == ("Bob", ["new"])


def test_operator_state_is_written_and_edited(tmp_path):
    with SnapshotWriter(tmp_path / "one", "p") as writer:
        writer.operator("op", "process").put_operator_list("numbers", [1, 2])
        writer.operator("op").put_broadcast("rules", {"a": 1})
        writer.operator("op").put_operator_list("names", ["x"], is_union=True)
    with SnapshotWriter.edit(tmp_path / "one", tmp_path / "two") as writer:
        writer.operator("op").put_operator_list("numbers", [3])
    with open_snapshot(tmp_path / "two") as snapshot:
        found = {(e.state, e.kind, e.part, e.value) for e in snapshot.entries("op")}
    assert found == {
        ("numbers", "operator list", 0, 3),
        ("rules", "broadcast", "a", 1),
        ("names", "union list", 0, "x"),
    }


# ---- bad input


def test_a_failure_leaves_no_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), SnapshotWriter(tmp_path / "out", "p") as writer:
        writer.operator("op").put("value", 1, 2)
        1 / 0  # noqa: B018
    assert not (tmp_path / "out").exists()
    writer = SnapshotWriter(tmp_path / "out", "p")
    writer.operator("op").put("value", 1, Profile("x", []))
    with pytest.raises(GraphError, match=r"(?s)Profile.*passed to the writer: classes="):
        writer.finish()
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(StoreError, match="must be new or empty"):
        SnapshotWriter(tmp_path / "full", "p")
    with pytest.raises(StoreError, match="there is no such folder"):
        SnapshotWriter.edit(tmp_path / "nothing", tmp_path / "out")
    assert (tmp_path / "full" / "file").exists() and not (tmp_path / "out").exists()
    with SnapshotWriter.edit(GOLDEN / "rows", tmp_path / "out") as writer:
        operator = writer.operator("sum")
        with pytest.raises(GraphError, match="no keyed state 'x'; it has list, map"):
            operator.delete("x", 1)
        with pytest.raises(GraphError, match="'timers' is a timer state"):
            operator.transform("timers", lambda key, value: value)
        with pytest.raises(GraphError, match="kind value, reducing, aggregating, not 'map'"):
            operator.put("x", 1, 2, kind="map")
        with pytest.raises(GraphError, match="no operator with the uid 'x'; it has sum"):
            writer.drop("x")
        with pytest.raises(GraphError, match="'map'"):
            operator.put("map", "b", 1)
