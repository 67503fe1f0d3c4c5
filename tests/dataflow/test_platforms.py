"""Jobs run on Linux only, and one check says so before anything of the runtime is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest
from click.testing import CliRunner

from penstock import GraphError, StreamExecutionEnvironment
from penstock.cli import main
from penstock.dataflow.platforms import require_linux

#: Another system, as the program sees it: without the modules that only Linux and macOS have.
#: Python itself could not import some of its modules under another name of the platform.
ELSEWHERE = """
import sys
sys.modules["fcntl"] = sys.modules["resource"] = None
from penstock import *
sys.platform = "win32"
"""


def elsewhere(program: str) -> str:
    command = [sys.executable, "-c", ELSEWHERE + program]
    return subprocess.run(command, capture_output=True, text=True).stderr


def test_a_program_can_be_built_elsewhere_and_is_refused_when_it_is_executed() -> None:
    said = elsewhere(
        "env = StreamExecutionEnvironment.get_execution_environment()\n"
        "env.from_collection([1]).map(str).print()\n"
        "print('built', file=sys.stderr)\n"
        "env.execute()\n"
    )
    assert said.startswith("built\n")
    assert said.splitlines()[-1].endswith(
        "Penstock runs jobs on Linux only, and this is 'win32': use WSL 2 on Windows, or a "
        "container or virtual machine with Linux"
    )
    assert "Linux only" in elsewhere("import penstock.testing")


@pytest.mark.parametrize(
    ("command", "code"), [(["run", "job.py"], 1), (["list"], 1), (["docs", "types"], 0)]
)
def test_commands_are_refused_elsewhere_except_the_pages(
    monkeypatch: pytest.MonkeyPatch, command: list[str], code: int
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    result = CliRunner().invoke(main, command)
    assert result.exit_code == code
    assert ("Penstock runs jobs on Linux only" in result.stderr) == bool(code)


def test_linux_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    require_linux()
    monkeypatch.setattr(sys, "platform", "freebsd14")
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1]).print()
    with pytest.raises(GraphError, match="this is 'freebsd14'"):
        env.execute()
