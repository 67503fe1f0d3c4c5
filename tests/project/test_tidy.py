"""Rules about the code base that no linter knows."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "penstock").rglob("*.py"))
EVERYTHING = [
    path
    for folder in ("penstock", "tests", "bench", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
]

#: No file is longer than this; a module aims at 150 to 250 lines.
LONGEST = 600
#: Tables of cases may be longer.
LONGEST_TEST = 900
#: trio is the runtime's: everything else is pure, or blocking code around it.
TRIO = ("penstock/runtime/", "penstock/cli/")


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _imports(tree: ast.AST) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("path", EVERYTHING, ids=_name)
def test_no_file_is_too_long(path: Path):
    limit = LONGEST_TEST if path.is_relative_to(ROOT / "tests") else LONGEST
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= limit, f"{_name(path)} has {lines} lines: split it"


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_every_module_says_what_it_is(path: Path):
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert text and len(text) > 20, f"{_name(path)} has no docstring that says what it is"


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_trio_is_used_only_in_the_runtime(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if not _name(path).startswith(TRIO):
        assert "trio" not in _imports(tree)


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_records_and_state_are_never_pickled(path: Path):
    # Only code and the plan are, from a job to its own processes.
    allowed = {
        "penstock/runtime/control/job_code.py",
        "penstock/runtime/control/code_pickler.py",
        "penstock/runtime/jobmanager/attempt/deployment.py",
        "penstock/runtime/taskmanager/deployment_descriptor.py",
    }
    if _name(path) not in allowed:
        assert not {"pickle", "cloudpickle"} & _imports(ast.parse(path.read_text("utf-8")))


@pytest.mark.parametrize("path", EVERYTHING, ids=_name)
def test_nothing_is_left_to_be_done_and_no_test_sleeps(path: Path):
    text = path.read_text(encoding="utf-8")
    assert "TO" + "DO" not in text and "FIX" + "ME" not in text
    if path.is_relative_to(ROOT / "tests"):
        assert "time." + "sleep(" not in text


def test_every_name_of_the_face_can_be_imported():
    import penstock

    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = penstock.nothing
