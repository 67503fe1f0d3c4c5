"""The commands that read snapshots as data."""

from __future__ import annotations

import json
import shutil
from datetime import date
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from penstock import GraphError, StreamExecutionEnvironment, ValueStateDescriptor, open_snapshot
from penstock.cli import main
from penstock.connectors.file_formats import JsonLines
from penstock.connectors.file_sink import FileSink
from penstock.dataflow.functions import KeyedProcessFunction
from penstock.dataflow.program import RunOptions, run_options
from penstock.runtime.dispatcher.job_registry import JobRegistry
from penstock.runtime.dispatcher.state_folder import StateFolder
from penstock.saved.json_values import as_json, keys_of
from tests.snapshot.state.test_golden_states import GOLDEN

ORDERS = [{"user": f"user{n % 40:02d}", "amount": n} for n in range(400)]


class Last(KeyedProcessFunction):
    def open(self, context):
        self.last = context.get_state(ValueStateDescriptor("last"))

    def process_element(self, order, context):
        self.last.update(order)
        yield order["user"]


def program(folder: Path, orders=ORDERS) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.set_in_process(True).enable_checkpointing(20)
    env.get_checkpoint_config().set_checkpoint_storage_dir(str(folder))
    keyed = env.from_collection(orders).uid("orders").key_by(lambda order: order["user"])
    keyed.process(Last()).uid("last order").sink_to(FileSink(folder.parent / "out", JsonLines()))
    return env


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("snapshots") / "job"
    program(folder).execute("orders")
    return folder


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["snapshots", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def rows(*arguments: object) -> list[dict]:
    return [json.loads(line) for line in run(*arguments, "--json").output.splitlines()]


def test_a_key_is_shown(job):
    (row,) = rows("query", job, "last order", "last", "--key", '"user07"')
    assert (row["key"], row["value"]) == ("user07", {"user": "user07", "amount": 367})
    assert "367" in run("query", job, "last order", "last", "--key", '"user07"').output
    assert run("query", job, "last order", "last", "--key", '"nobody"', code=1).output.strip() in (
        "",
        "value",
    )
    assert "is no JSON" in run("query", job, "last order", "last", "--key", "x", code=1).output
    assert (
        "cannot be a key"
        in run("query", job, "last order", "last", "--key", '{"a": 1}', code=1).output
    )


def test_keys_with_a_prefix_are_shown(job):
    found = rows("query", job, "last order", "last", "--prefix", "user1")
    assert sorted(row["key"] for row in found) == [f"user1{n}" for n in range(10)]
    text = run("query", job, "last order", "last", "--limit", 3).output
    assert text.count("amount") == 3 and "more than 3 entries" in text


def test_the_largest_entries_are_shown(job):
    found = rows("query", job, "last order", "last", "--top", 3, "--by", "value.amount")
    assert [row["value"]["amount"] for row in found] == [399, 398, 397]
    found = rows("query", job, "last order", "last", "--top", 1, "--by", "key")
    assert found[0]["key"] == "user39"
    for by, message in [
        ("amount", "named as value.amount"),
        ("value.price", "no entry has a field value.price; a value is, for example, {'user'"),
        ("value", "cannot be compared"),
    ]:
        text = run("query", job, "last order", "last", "--top", 2, "--by", by, code=1).output
        assert message in text
    assert (
        "only one of"
        in run("query", job, "last order", "last", "--top", 2, "--key", "1", code=1).output
    )


def test_an_unknown_state_is_an_error_that_lists_those_that_exist(job):
    text = run("query", job, "lost order", "last", code=1).output
    assert "no state of an operator with the uid 'lost order'" in text
    assert "last order: last" in text


def test_a_query_in_sql_is_answered(job):
    pytest.importorskip("duckdb")
    query = 'SELECT sum(value.amount)::BIGINT AS total FROM "last order"."last"'
    assert rows("sql", job, query) == [{"total": sum(range(360, 400))}]
    assert "total" in run("sql", job, query).output
    assert '"last order"."last"' in run("sql", job, "SELECT * FROM nothing", code=1).output


def test_a_state_is_exported(job, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    run("export", job, "last order", "last", tmp_path / "last.parquet")
    table = parquet.read_table(tmp_path / "last.parquet").to_pylist()
    assert {row["key"]: row["value"]["amount"] for row in table} == {
        f"user{n:02d}": 360 + n for n in range(40)
    }
    run("export", job, "last order", "last", tmp_path / "last.jsonl")
    lines = (tmp_path / "last.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == table
    text = run("export", job, "last order", "last", "-", "--format", "csv").output.splitlines()
    assert text[0] == "key,value" and len(text) == 41
    assert "names no format" in run("export", job, "last order", "last", "x.txt", code=1).output
    text = run("export", job, "last order", "last", "-", "--format", "parquet", code=1).output
    assert "not written to standard output" in text


def test_a_snapshot_is_verified(job, tmp_path):
    assert "40 entries and 0 records in flight decode" in run("verify", job).output
    (result,) = json.loads(run("verify", job, "--json").output)
    assert (result["entries"], result["problem"]) == (40, None)
    assert "decode" in run("verify", job, "--all").output
    assert "there is no complete snapshot 99" in run("verify", job, "-n", 99, code=1).output
    assert "no such folder" in run("verify", tmp_path / "nothing", code=1).output


def test_a_job_starts_from_a_copy(job, tmp_path):
    copy = tmp_path / "copy"
    text = run("copy", job, copy).output
    with open_snapshot(job) as old, open_snapshot(copy) as new:
        assert text.strip() == str(new.path)
        assert sorted(old.entries()) == sorted(new.entries())
        assert old.manifest == new.manifest
    assert "must be new or empty" in run("copy", job, copy, code=1).output
    assert json.loads(run("list", copy, "--json").output)["snapshots"][0]["complete"]
    assert run("verify", copy).output
    with run_options(RunOptions(resume=str(copy), fork=True)):
        program(tmp_path / "fork").execute("orders")
    assert "40 entries" in run("verify", tmp_path / "fork").output


def test_a_copy_of_a_damaged_snapshot_is_removed(tmp_path):

    shutil.copytree(GOLDEN / "rows", tmp_path / "job")
    (table,) = (tmp_path / "job").rglob("*.sst")
    data = bytearray(table.read_bytes())
    data[100] ^= 1
    table.write_bytes(data)
    assert "another checksum" in run("copy", tmp_path / "job", tmp_path / "copy", code=1).output
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    "key",
    [1, -7, 2.5, "a", "", ("a", 1), ("a", ("b", 2)), None, True, date(2026, 1, 2), b"\x00\xff"]
    + [UUID(int=5), Decimal("1.50")],
    ids=repr,
)
def test_a_key_is_found_by_the_text_that_shows_it(key):
    assert key in list(keys_of(as_json(key)))


def test_a_key_that_is_no_json_is_refused():
    with pytest.raises(GraphError, match="a text needs quotes"):
        list(keys_of("ada"))


def test_a_job_of_the_service_is_named_by_its_id(job, tmp_path, monkeypatch):
    home = StateFolder(tmp_path / "home")
    home.open()
    registry = JobRegistry(home.jobs)
    for folder in (str(job), ""):
        registry.add(registry.create("orders", str(tmp_path), folder), b"")
    monkeypatch.setenv("PENSTOCK_HOME", str(home.root))
    monkeypatch.chdir(tmp_path)
    assert (
        run("query", "1", "last order", "last").output
        == run("query", job, "last order", "last").output
    )
    assert json.loads(run("list", "1", "--json").output)["job"] == "orders"
    assert "job 2 (orders) has no checkpoint folder" in run("list", "2", code=2).output
    assert "no folder '7', and there is no job 7" in run("list", "7", code=2).output
    (tmp_path / "2").mkdir()
    assert "no checkpoint folder" not in run("list", "2", code=1).output, "a folder comes first"
    home.close()
