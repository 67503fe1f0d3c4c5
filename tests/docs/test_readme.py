"""The README is run: its program, every command of `penstock`, and the kills it speaks of."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.processes.harness import PATIENCE, wait_until

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def _commands() -> list[str]:
    lines = [
        line.partition("#")[0].strip() for block in _blocks("sh") for line in block.split("\n")
    ]
    return [line for line in lines if line]


ENVIRONMENT = {
    **os.environ,
    "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    "PYTHONPATH": str(ROOT),
}


def _shell(command: str, folder: Path) -> str:
    done = subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


#: Every page, the README among them.
PAGES = sorted(
    page for pages in ("*.md", "docs/**/*.md", "tests/*.md") for page in ROOT.glob(pages)
)


def _anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_targets_that_a_page_names_exist(page: Path):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    # In a sentence, in a block of commands, or indented as one.
    blocks = "".join(re.findall(r"^```sh\n.*?^```", text, re.DOTALL | re.MULTILINE))
    named = set(re.findall(r"(?:`| {4})make ([a-z-]+)", text))
    named |= set(re.findall(r"^make ([a-z-]+)", blocks, re.MULTILINE))
    assert named <= targets


def test_a_newcomer_finds_the_targets():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE))
    named |= set(re.findall(r"`make ([a-z-]+)", text))
    assert "`make demo`" in README
    assert named >= {"demo", "demo-spark", "examples", "test", "bench", "soak", "soak-spark"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_files_that_a_page_links_exist(page: Path):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)]+)\)", text):
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), target
        assert not anchor or anchor in _anchors(linked), target


def test_its_job_survives_the_kills_that_it_speaks_of(tmp_path: Path):
    program, *_ = _blocks("python")
    rate = "records_per_second=20_000"
    assert rate in program
    # Slowly until the kills have come, however slow the machine, and then as fast as can be.
    (tmp_path / "counts.py").write_text(program.replace(rate, "records_per_second=3_000"))
    commands = [command for command in _commands() if not command.startswith("pip")]
    run, resume, *after = commands
    with (tmp_path / "told").open("w") as told:
        process = subprocess.Popen(
            shlex.split(run), cwd=tmp_path, env=ENVIRONMENT, stdout=told, stderr=told
        )

    def lines(word: str) -> list[str]:
        return [line for line in (tmp_path / "told").read_text().split("\n") if word in line]

    wait_until(lambda: lines("snapshot"), "a snapshot")
    worker = re.findall(r"\d+", lines("workers: pids")[0])[0]
    os.kill(int(worker), signal.SIGKILL)
    wait_until(lambda: len(lines("workers: pids")) == 2, "a restart")
    parts = len(list((tmp_path / "counts").glob("part-*")))
    wait_until(lambda: len(list((tmp_path / "counts").glob("part-*"))) > parts, "more output")
    jobmanager = re.findall(r"\d+", lines("JobManager pid")[0])[0]
    os.kill(int(jobmanager), signal.SIGKILL)
    assert process.wait(timeout=PATIENCE) != 0
    assert any("--resume" in line for line in lines("penstock run")), lines("")

    (tmp_path / "counts.py").write_text(program.replace(rate, "records_per_second=10**6"))
    _shell(f"{resume} 2>>told", tmp_path)
    assert [int(_shell(command, tmp_path)) for command in after] == [100_000, 0]
    for line in _blocks("text")[0].splitlines():
        words = re.split(r"\d", line)[0]
        assert any(said.startswith(words) for said in lines(words)), line


#: The subcommands of `penstock` in its sentences and blocks.
NAMED = set(re.findall(r"(?:^|`)penstock ([a-z]+)", README, re.MULTILINE))


@pytest.mark.parametrize("command", sorted(NAMED))
def test_the_commands_that_it_names_exist(command: str, tmp_path: Path):
    assert "Usage" in _shell(f"penstock {command} --help", tmp_path)


def test_it_is_short():
    assert len(README.split()) <= 650
