"""Files, folders, modules and classes that pages, docstrings and comments name do exist."""

from __future__ import annotations

import ast
import builtins
import importlib
import io
import json
import re
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("penstock", "tests", "bench", "examples", "docs")
MODULES = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "tests/README.md",
]

#: Files of a user's program, of results, and of other projects.
OTHER_FILES = {
    "JOB.py",
    "check.py",
    "clicks.py",
    "minutes.py",
    "pages.py",
    "payments.py",
    "report.py",
    "shop.py",
    "PROGRAM.py",
    "PROTOCOL.md",  # of Delta Lake
    "conftest.py",
    "counts.py",
    "job.py",
    "latency.md",
    "paper.md",
    "penstock.toml",
    "rules.py",
    "words.py",
}
#: Names that begin like a module: loggers, a file, and a module that is refused.
NO_MODULES = {
    "penstock.jobmanager",
    "penstock.positions",
    "penstock.random_numbers",
    "penstock.table",
    "penstock.taskmanager",
    "penstock.toml",
}
#: Classes of other projects. Where the text names Flink nearby, its classes need no entry.
OTHER_CLASSES = {"CalendarInterval", "QueryableState"}
#: A page with columns of Flink's classes.
FLINK_PAGES = ("docs/inside/style.md", "docs/reference/pyflink.md")

FILE = re.compile(r"(?<![\[\w/.*<-])(?:[\w-]+/)*[\w-]+\.(?:py|md|toml|yml)\b(?!/|\.?\w)")
FOLDER = re.compile(rf"`((?:{'|'.join(FOLDERS)}|runtime|snapshot|dataflow|connectors)/[\w/-]*)`")
DOTTED = re.compile(r"(?<![\w./-])(?:penstock|tests|bench)(?:\.[A-Za-z_]\w*)+")
CLASS = re.compile(r"`([A-Z][a-z0-9]+(?:[A-Z][A-Za-z0-9]*)+)(?:\.\w+)*(?:\([^`]*\))?`")


#: The names that occur in code: that of modules, and classes in the programs of pages.
NAMES = set(dir(builtins))


def _text_of_page(path: Path) -> str:
    """Return the prose of a page."""
    text = path.read_text(encoding="utf-8")
    NAMES.update(re.findall(r"^class (\w+)", text, re.MULTILINE))
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def _text_of_module(path: Path) -> str:
    """Return the docstrings and comments of a module, and add its names to `NAMES`."""
    code = path.read_text(encoding="utf-8")
    texts = [
        ast.get_docstring(node) or ""
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type == tokenize.COMMENT:
            texts.append(token.string)
        elif token.type == tokenize.NAME:
            NAMES.add(token.string)
    return "\n".join(texts)


@cache
def _texts() -> dict[str, str]:
    """Return the text of each page and module, by its path, and fill `NAMES`.

    The call takes seconds. Each process of `make test` imports this file, and only one runs it.
    """
    texts = {path.relative_to(ROOT).as_posix(): _text_of_page(path) for path in PAGES}
    return texts | {path.relative_to(ROOT).as_posix(): _text_of_module(path) for path in MODULES}


def _places(name: str) -> Iterator[Path]:
    """Yield the folders from which a text may name a file.

    These are its own folder, those above it, the package and `bench`.
    """
    folder = (ROOT / name).parent
    yield from (ROOT, ROOT / "penstock", ROOT / "bench")
    while folder != ROOT:
        yield folder
        folder = folder.parent


def _wrong(pattern: re.Pattern[str], is_right: Callable[[str, re.Match[str]], bool]) -> str:
    """Return a line for each match that is wrong, with the file that has it."""
    wrong = {
        f"{name}: {found[0]}"
        for name, text in _texts().items()
        for found in pattern.finditer(text)
        if not is_right(name, found)
    }
    return "\n".join(sorted(wrong))


@pytest.mark.parametrize("pattern", [FILE, FOLDER], ids=["files", "folders"])
def test_the_files_and_folders_that_a_text_names_exist(pattern: re.Pattern[str]):
    def exists(name: str, found: re.Match[str]) -> bool:
        path = found[0].strip("`")
        return path in OTHER_FILES or any((place / path).exists() for place in _places(name))

    assert _wrong(pattern, exists) == ""


def _can_be_imported(dotted: str) -> bool:
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def test_the_modules_that_a_text_names_exist():
    def exists(_: str, found: re.Match[str]) -> bool:
        return found[0] in OTHER_FILES | NO_MODULES or _can_be_imported(found[0])

    assert _wrong(DOTTED, exists) == ""


def test_the_classes_that_a_text_names_exist():
    pyflink = json.loads((Path(__file__).parent / "data" / "pyflink_names.json").read_text("utf-8"))
    _texts()
    known = NAMES | set(pyflink["names"]) | OTHER_CLASSES

    def exists(name: str, found: re.Match[str]) -> bool:
        near = found.string[max(0, found.start() - 120) : found.end() + 60]
        return found[1] in known or name in FLINK_PAGES or "Flink" in near

    assert _wrong(CLASS, exists) == ""


def test_the_patterns_find_what_they_look_for():
    text = "`snapshot/nowhere.py`, `runtime/nowhere/`, penstock.nowhere.It and `NoSuchClass(1)`."
    assert FILE.findall(text) == ["snapshot/nowhere.py"]
    assert FOLDER.findall(text) == ["runtime/nowhere/"]
    assert DOTTED.findall(text) == ["penstock.nowhere.It"]
    assert CLASS.findall(text) == ["NoSuchClass"]
    assert not _can_be_imported("penstock.nowhere.It") and _can_be_imported("penstock.DataStream")
