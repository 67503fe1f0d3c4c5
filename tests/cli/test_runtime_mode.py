"""The option `--runtime-mode`."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from penstock.cli import main

PROGRAM = """
from penstock import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
words = env.from_collection(["a", "b", "a"])
words.key_by(lambda word: word).count().print()
env.execute()
"""


def _run(path: Path, *options: str) -> list[str]:
    done = CliRunner().invoke(
        main, ["run", "--in-process", "--progress", "none", *options, str(path)]
    )
    assert done.exit_code == 0, done.output
    return sorted(line for line in done.output.splitlines() if line.startswith("("))


def test_one_program_runs_as_a_stream_and_as_a_batch(tmp_path: Path) -> None:
    path = tmp_path / "job.py"
    path.write_text(PROGRAM)
    assert _run(path) == ["('a', 1)", "('a', 2)", "('b', 1)"]
    assert _run(path, "--runtime-mode", "batch") == ["('a', 2)", "('b', 1)"]
    assert _run(path, "--runtime-mode", "Automatic") == ["('a', 2)", "('b', 1)"]
