"""A process of a job executes no job; a program that a function starts may."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from penstock import GraphError, StreamExecutionEnvironment
from penstock.dataflow.nested_jobs import current_role, running_as
from tests.processes.harness import PATIENCE

ROOT = str(Path(__file__).resolve().parents[2])

# Executed wherever this is imported. It counts the processes that do, and goes no further once
# there are too many: they would multiply.
_JOB = """
    import os
    from pathlib import Path

    FOLDER = Path(__file__).parent
    with open(FOLDER / "imported", "a") as file:
        print(__name__, os.getpid(), file=file)
    if (FOLDER / "imported").read_text().count(chr(10)) > 5:
        raise SystemExit("processes multiply")

    from penstock import StreamExecutionEnvironment

    def double(number):
        return 2 * number

    def late(number):
        import colorsys
        return number

    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_sequence(1, 3).map(FUNCTION).add_sink(len)
    env.execute("doubles")
"""

_STARTING = """
    import subprocess
    import sys

    INNER = '''
    from penstock import StreamExecutionEnvironment
    env = StreamExecutionEnvironment.get_execution_environment()
    print(sum(env.from_sequence(1, 4).execute_and_collect()))
    '''

    def start(number):
        return subprocess.check_output([sys.executable, "-c", INNER], text=True)

    from penstock import StreamExecutionEnvironment
    env = StreamExecutionEnvironment.get_execution_environment()
    print(*env.from_collection([1]).map(start).execute_and_collect())
"""


def _run(folder: Path, file: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, file],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def _write(path: Path, code: str) -> None:
    path.write_text(textwrap.dedent(code))


def _importing(folder: Path) -> list[str]:
    return [line.split()[0] for line in (folder / "imported").read_text().splitlines()]


def test_a_job_module_that_the_job_itself_imports_is_refused(tmp_path: Path):
    _write(tmp_path / "job2.py", _JOB.replace("FUNCTION", "double"))
    _write(tmp_path / "main.py", "import job2")
    ended = _run(tmp_path, "main.py")
    assert ended.returncode == 1
    # In the program and in its JobManager, which then had no worker to start.
    assert _importing(tmp_path) == ["job2", "job2"]
    last = ended.stderr.splitlines()[-1]
    assert "a JobManager has imported job2, which executes a job when it is imported" in last
    assert f"{tmp_path / 'job2.py'}, line " in last
    assert last.endswith('put that below `if __name__ == "__main__":`')


def test_a_job_file_named_like_a_module_that_a_worker_imports_is_refused(tmp_path: Path):
    _write(tmp_path / "colorsys.py", _JOB.replace("FUNCTION", "late"))
    ended = _run(tmp_path, "colorsys.py")
    assert ended.returncode == 1
    assert _importing(tmp_path) == ["__main__", "colorsys"]
    assert "a worker has imported colorsys, which executes a job" in ended.stderr


def test_a_program_that_a_function_starts_executes_its_job(tmp_path: Path):
    _write(tmp_path / "main.py", _STARTING)
    ended = _run(tmp_path, "main.py")
    assert (ended.stdout.split(), ended.stderr) == (["10"], "")


@pytest.mark.parametrize("method", ["execute", "execute_and_collect"])
def test_a_function_of_a_job_executes_none(method: str):
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_sequence(1, 3)
    refused = pytest.raises(GraphError, match="executes a job of its own in a worker process")
    with running_as("a worker"), refused:
        (env.execute if method == "execute" else stream.execute_and_collect)()
    assert current_role() is None
