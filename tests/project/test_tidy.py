"""Rules about the code base that no linter knows."""

import ast
from collections.abc import Callable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "penstock").rglob("*.py"))
EVERYTHING = [
    path
    for folder in ("penstock", "tests", "bench", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
]

#: No module of the package is longer than this, except those below.
LONGEST = 600
#: A class with its documentation that is one subject, and so is not split.
LONGER = {"penstock/dataflow/streams/data_stream.py": 1000}
#: Benchmarks and examples may be longer.
LONGEST_PROGRAM = 600
#: Tables of cases may be longer.
LONGEST_TEST = 900
#: The classes of streams return each other. Their modules may import each other for type hints.
STREAMS = "penstock.dataflow.streams."
#: Methods of `DataStream` return objects of its subclasses, whose modules they import themselves.
SUBCLASSES = {
    (f"{STREAMS}data_stream", f"{STREAMS}keyed_stream"),
    (f"{STREAMS}data_stream", f"{STREAMS}feedback"),
}
#: trio is the runtime's: everything else is pure, or blocking code around it.
TRIO = ("penstock/runtime/", "penstock/cli/", "penstock/rest/", "penstock/testing/simulation/")


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


def _broken(paths: list[Path], rule: Callable[[Path], bool]) -> list[str]:
    """Return the names of the files that break a rule."""
    return [_name(path) for path in paths if not rule(path)]


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def test_no_file_is_too_long():
    def fits(path: Path) -> bool:
        limits = {"penstock": LONGEST, "tests": LONGEST_TEST}
        limit = limits.get(path.relative_to(ROOT).parts[0], LONGEST_PROGRAM)
        limit = LONGER.get(_name(path), limit)
        return len(path.read_text(encoding="utf-8").splitlines()) <= limit

    assert _broken(EVERYTHING, fits) == []


def test_every_module_has_a_docstring_that_says_what_it_is():
    assert _broken(MODULES, lambda path: len(ast.get_docstring(_tree(path)) or "") > 20) == []


def test_trio_is_used_only_in_the_runtime_and_its_simulator():
    others = [path for path in MODULES if not _name(path).startswith(TRIO)]
    assert _broken(others, lambda path: "trio" not in _imports(_tree(path))) == []


def test_records_and_state_are_never_pickled():
    # Only code and the plan are, from a job to its own processes.
    allowed = {
        "penstock/runtime/control/job_code.py",
        "penstock/runtime/control/code_pickler.py",
        "penstock/runtime/control/struct_pickling.py",
        "penstock/runtime/jobmanager/attempt/deployment.py",
        "penstock/runtime/taskmanager/deployment_descriptor.py",
    }
    others = [path for path in MODULES if _name(path) not in allowed]
    pickles = {"pickle", "cloudpickle"}
    assert _broken(others, lambda path: not pickles & _imports(_tree(path))) == []


def test_nothing_is_left_to_be_done_and_no_test_sleeps():
    def is_done(path: Path) -> bool:
        text = path.read_text(encoding="utf-8")
        sleeps = path.is_relative_to(ROOT / "tests") and "time." + "sleep(" in text
        return not sleeps and "TO" + "DO" not in text and "FIX" + "ME" not in text

    assert _broken(EVERYTHING, is_done) == []


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported_modules(path: Path, modules: set[str]) -> set[str]:
    """Return the modules of the package that a module imports, wherever it does so."""
    return _imports_of(_tree(path), path, modules)


def _imports_of(tree: ast.AST, path: Path, modules: set[str]) -> set[str]:
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{_name(path)} has a relative import"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.add(submodule if submodule in modules else node.module or "")
    return found & modules


def _allowed_in_cycles(path: Path, modules: set[str]) -> set[str]:
    """Return the modules that a stream's module imports although they import that module."""
    module = _module(path)
    if not module.startswith(STREAMS):
        return set()
    hints = [
        node
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    typed = set().union(*(_imports_of(node, path, modules) for node in hints))
    subclasses = {imported for importer, imported in SUBCLASSES if importer == module}
    return {one for one in typed | subclasses if one.startswith(STREAMS)}


def test_no_module_is_in_an_import_cycle():
    # Imports inside functions and for type checkers count: both hide a cycle.
    modules = {_module(path) for path in MODULES} - {"penstock"}
    graph = {
        _module(path): _imported_modules(path, modules)
        - _allowed_in_cycles(path, modules)
        - {_module(path)}
        for path in MODULES
        if _module(path) in modules
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("import cycle: " + " <- ".join(error.args[1]))


def test_types_are_in_the_modules_and_not_in_stubs():
    assert not list((ROOT / "penstock").rglob("*.pyi"))


def test_only_faces_have_a_list_of_their_names():
    # Private names begin with an underscore.
    def is_clean(path: Path) -> bool:
        return path.name == "__init__.py" or "\n__all__" not in path.read_text(encoding="utf-8")

    assert _broken(MODULES, is_clean) == []


def test_no_class_name_is_defined_twice():
    places: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(_name(path))
    assert not {name: paths for name, paths in places.items() if len(paths) > 1}


def test_every_name_of_the_face_can_be_imported():
    import penstock
    from penstock.public_names import MODULE_OF

    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    # These names have another meaning in most programs.
    assert {*MODULE_OF} - {*penstock.__all__} == {"Counter"}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = penstock.nothing


def test_the_quick_tests_exist():
    # pytest does not complain about a path to ignore, or a test to deselect, that does not exist.
    lines = (ROOT / "tests" / "quick.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        path, _, name = line.rpartition("=")[2].partition("::")
        assert (ROOT / path).exists(), line
        name = name.rpartition("::")[2].partition("[")[0]
        assert not name or f" {name}(" in (ROOT / path).read_text(encoding="utf-8"), line
