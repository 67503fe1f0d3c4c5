"""What mypy finds in programs: the types of streams, and wrong fields in lambdas and functions.

One run of `mypy --strict` checks the files of `samples/`. A comment `# E: text` says that the line
has an error with this text, and `# R: type` says which type `reveal_type` shows there.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = Path(__file__).parent / "samples"
FILES = sorted(SAMPLES.glob("*.py"))

_MESSAGE = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+): (?P<kind>error|note): (?P<text>.*)$")
_REVEALED = re.compile(r'Revealed type is "(.*)"')
#: A line of the page, and after it one that reveals the type of the stream.
_REVEALING = r"\1 = \2\nreveal_type(\1)"
_MARKER = re.compile(r"# (?P<kind>[ER]): (?P<text>.+)$")


#: The program of the page on types. Where a comment says which type a stream has, it is revealed.
PAGE = (ROOT / "docs" / "guides" / "types.md").read_text(encoding="utf-8")
(PROGRAM,) = re.findall(r"## Types for editors.*?```python\n(.*?)```", PAGE, re.DOTALL)

Messages = dict[str, dict[int, list[str]]]


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> Messages:
    """The messages of mypy by file and line: `E: text` and `R: type`."""
    folder = tmp_path_factory.mktemp("page")
    page = folder / "program_of_page.py"
    page.write_text(
        re.sub(r"^(\w+) = (.*# (?:Data|Keyed)Stream.*)$", _REVEALING, PROGRAM, flags=re.M)
    )
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--explicit-package-bases",
            "--no-error-summary",
            *map(str, [*FILES, page]),
        ],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(folder)},
        capture_output=True,
        text=True,
    )
    assert run.stderr == ""
    found: Messages = defaultdict(lambda: defaultdict(list))
    for line in run.stdout.splitlines():
        match = _MESSAGE.match(line)
        assert match, line
        revealed = _REVEALED.match(match["text"])
        if revealed:
            text = f"R: {_short(revealed[1])}"
        elif match["kind"] == "error":
            text = f"E: {match['text']}"
        else:
            continue  # a note that belongs to an error
        found[Path(match["file"]).name][int(match["line"])].append(text)
    return found


def test_the_program_of_the_page_on_types_has_the_types_that_it_says(messages: Messages):
    expected = re.findall(r"^(\w+) = .*# ((?:Data|Keyed)Stream.*)$", PROGRAM, re.MULTILINE)
    assert len(expected) == 3
    found = [text for texts in messages["program_of_page.py"].values() for text in texts]
    assert found == [f"R: {kind}" for _, kind in expected]


def _short(revealed: str) -> str:
    """Return a type without the modules that define its parts, and without items of windows."""
    return re.sub(r"tuple\[[^]]*, fallback=(\w+)\]", r"\1", re.sub(r"[a-z_]+[.]", "", revealed))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_mypy_finds_the_types_and_errors_that_a_sample_names(path: Path, messages: Messages):
    found = messages[path.name]
    lines = path.read_text(encoding="utf-8").splitlines()
    wrong = []
    for number, line in enumerate(lines, 1):
        marker = _MARKER.search(line)
        here = found.get(number, [])
        if marker is None:
            wrong += [f"{number}: nothing was expected, and mypy says {text}" for text in here]
        elif marker["kind"] == "R" and here != [f"R: {marker['text']}"]:
            wrong.append(f"{number}: expected {marker['text']}, and mypy says {here}")
        elif marker["kind"] == "E" and not any(marker["text"] in text for text in here):
            wrong.append(f"{number}: expected an error, and mypy says {here}")
    assert not wrong, "\n".join(wrong)
