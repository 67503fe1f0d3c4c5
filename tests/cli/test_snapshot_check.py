"""`penstock snapshots check` says whether a program can go on, also by its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock import SnapshotWriter
from penstock.cli import main

PROGRAM = """
import sys
from penstock import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

class Count(KeyedProcessFunction):
    def open(self, context):
        self.count = context.get_state(ValueStateDescriptor(sys.argv[1]))
        self.random = context.get_random()

    def process_element(self, word, context):
        raise AssertionError("a record was processed")
        yield

env = StreamExecutionEnvironment.get_execution_environment()
stream = env.from_collection(["a"]).uid("words").key_by(str).process(Count()).uid("count")
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    with SnapshotWriter(tmp_path / "job", "words") as writer:
        writer.operator("count").put("n", "a", 3)
    return tmp_path / "job"


def check(tmp_path: Path, job: Path, state: str, *options: str, end: str = "") -> Result:
    script = tmp_path / "job.py"
    script.write_text(PROGRAM + (end or "stream.print().uid('out')\nenv.execute()\n"))
    arguments = ["snapshots", "check", str(script), str(job), *options, "--", state]
    return CliRunner().invoke(main, arguments)


def test_the_exit_code_says_whether_the_program_fits(tmp_path: Path, job: Path) -> None:
    found = check(tmp_path, job, "n")
    assert found.exit_code == 0, found.output
    assert [line.split()[0] for line in found.output.splitlines()] == [
        "uid",
        "count",
        "words",
        "snapshot",
    ]
    found = check(tmp_path, job, "m")
    assert found.exit_code == 1
    assert "dropped" in found.output and "Was it renamed?" in found.output
    assert "Error: the program cannot go on from this snapshot" in found.output
    assert check(tmp_path, job, "m", "--allow-dropped").exit_code == 0


def test_json_is_for_scripts(tmp_path: Path, job: Path) -> None:
    collected = "list(stream.execute_and_collect())\n"
    found = json.loads(check(tmp_path, job, "n", "--json", "-p", "2", end=collected).stdout)
    assert found["snapshot"] == 1 and found["fits"] is True
    outcomes = {one["uid"]: (one["outcome"], one["reasons"]) for one in found["operators"]}
    rescaled = "rescaled", ["parallelism was 1 and is 2"]
    assert outcomes["count"] == rescaled and outcomes["words"][0] == "new"


def test_bad_input_has_a_clear_message(tmp_path: Path, job: Path) -> None:
    found = check(tmp_path, tmp_path / "nowhere", "n")
    assert found.exit_code == 1 and "there is no such folder" in found.output
    found = check(tmp_path, job, "n", "-n", "7")
    assert found.exit_code == 1 and "7" in found.output
    found = check(tmp_path, job, "n", end="raise ValueError('broken job')\n")
    assert found.exit_code == 1 and "broken job" in found.output
    found = check(tmp_path, job, "n", end="pass\n")
    assert found.exit_code != 0, "the program has run no job"
