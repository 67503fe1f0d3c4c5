"""Python files, archives and an interpreter that the command line gives to real workers."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.processes.harness import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
JOB = """
import os, signal, sys
from pathlib import Path

import sent_rules  # the client finds it, too
from penstock import FileSink, RestartStrategies, StreamExecutionEnvironment, TextLines

killed = Path("killed").absolute()


def see(number):
    if not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    words = Path("models/words.txt").read_text()
    inside = Path(sent_rules.__file__).is_relative_to(Path.cwd().parent)
    return f"{number + sent_rules.LIMIT} {words} {inside} {Path(sys.prefix).name}"


env = StreamExecutionEnvironment.get_execution_environment()
env.set_restart_strategy(RestartStrategies.fixed_delay_restart(9, 0))
env.from_sequence(1, 4).map(see).sink_to(FileSink("output", TextLines()))
env.execute()
"""


def test_workers_have_the_files_of_the_command_line_again_after_a_kill(tmp_path: Path):
    other = tmp_path / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    (site,) = other.glob("lib/python*/site-packages")
    mine = [str(ROOT), *(path for path in sys.path if path.endswith("site-packages"))]
    (site / "mine.pth").write_text("\n".join(mine))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "sent_rules.py").write_text("LIMIT = 7\n")
    with zipfile.ZipFile(tmp_path / "models.zip", "w") as archive:
        archive.writestr("words.txt", "to be")
    (tmp_path / "wanted.txt").write_text("click\n")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "job.py").write_text(JOB)
    command = [str(Path(sys.executable).with_name("penstock")), "run", "job.py", "-p2"]
    command += ["-pyfs", "../lib/sent_rules.py", "-pyarch", "../models.zip#models"]
    command += ["-pyreq", "../wanted.txt", "-pyexec", "../other/bin/python"]
    done = subprocess.run(
        command,
        cwd=tmp_path / "work",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "work" / "killed").exists()
    lines = [
        line
        for path in (tmp_path / "work" / "output").glob("part-*")
        for line in path.read_text().splitlines()
    ]
    assert sorted(lines) == sorted(f"{n} to be True other" for n in range(8, 12))
