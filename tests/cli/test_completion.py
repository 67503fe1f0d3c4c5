"""The script of `penstock completion`, and what it completes."""

import os
import shutil
import subprocess
import sys

import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.runtime.dispatcher.job_registry import JobRegistry
from tests.processes.harness import PATIENCE


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed_and_the_shell_accepts_it(shell):
    done = CliRunner().invoke(main, ["completion", shell])
    assert done.exit_code == 0 and "_PENSTOCK_COMPLETE" in done.stdout
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=done.stdout, text=True, check=True, timeout=PATIENCE)


def test_another_shell_is_a_wrong_command_line():
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2


def completed(*words, home):
    """Return what bash would get as completions of the last word."""
    done = subprocess.run(
        [sys.executable, "-m", "penstock"],
        env={
            **os.environ,
            "_PENSTOCK_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("penstock", *words)),
            "COMP_CWORD": str(len(words)),
            "PENSTOCK_HOME": str(home),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    return [line.partition(",")[2] for line in done.stdout.split()]


def test_commands_options_and_ids_of_jobs_are_completed(tmp_path):
    registry = JobRegistry(tmp_path / "jobs")
    (tmp_path / "jobs").mkdir()
    for name in ("clicks", "orders"):
        registry.add(registry.create(name, "/"), b"")
    assert set(completed("res", home=tmp_path)) == {"rescale", "restart"}
    assert "--allow-dropped" in completed("upgrade", "--al", home=tmp_path)
    assert completed("show", "", home=tmp_path) == ["1", "2"]
    assert completed("show", "2", home=tmp_path) == ["2"]
    assert completed("show", "", home=tmp_path / "missing") == []
