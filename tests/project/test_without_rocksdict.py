"""Penstock where rocksdict is not installed, as on builds of Python for which it has no wheel."""

import re
import subprocess
import sys
from pathlib import Path

import penstock

PROGRAM = """
import logging, sys

sys.modules["rocksdict"] = None
import penstock

logging.basicConfig(format="%(message)s", stream=sys.stdout, level=logging.WARNING)
env = penstock.StreamExecutionEnvironment.get_execution_environment()
env.set_in_process(True).enable_checkpointing(20)
env.get_checkpoint_config().set_checkpoint_storage_dir(sys.argv[1]).set_inline_threshold(0)
counted = env.from_sequence(1, 20_000).map(lambda i: (i % 100, 1)).key_by(lambda pair: pair[0])
results = list(counted.reduce(lambda a, b: (a[0], a[1] + b[1])).execute_and_collect())
assert len(results) == 20_000 and max(results) == (99, 200), max(results)
"""


def test_a_job_runs_without_rocksdict_and_says_once_that_its_state_is_in_sqlite(tmp_path: Path):
    job = tmp_path / "job"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(job)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert said.count("large state will be stored in SQLite instead of RocksDB") == 1, said
    assert list(job.rglob("*.changes"))


SIMULATED = """
import sys

sys.modules["rocksdict"] = None
from penstock import StreamExecutionEnvironment
from penstock.testing.simulation import simulate

def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    counted = env.from_sequence(1, 200).map(lambda i: (i % 10, 1)).key_by(lambda pair: pair[0])
    counted.reduce(lambda a, b: (a[0], a[1] + b[1])).print()
    env.execute("counted")

if __name__ == "__main__":
    print(simulate(main, seeds=3))
"""


def test_a_job_is_simulated_without_rocksdict(tmp_path: Path):
    script = tmp_path / "simulated.py"
    script.write_text(SIMULATED)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert "all right: 3 seeds" in done.stdout, done.stdout + done.stderr


def test_only_the_modules_of_rocksdb_import_rocksdict():
    package = Path(penstock.__file__).parent
    found = {
        path.relative_to(package).parent.as_posix()
        for path in package.rglob("*.py")
        if re.search(r"^\s*(from|import) rocksdict", path.read_text("utf-8"), re.MULTILINE)
    }
    assert found == {"snapshot/state/rocksdb"}
