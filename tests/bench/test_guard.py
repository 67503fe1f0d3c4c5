"""The guard compares counts with those of a revision, and fails from a tenth on."""

from pathlib import Path

import pytest

from bench.compare import CompareError
from bench.counts import guard as guards

TABLE = """\
wordcount.calls                 7.78       8.148
wordcount.messages            1e-05        none
"""


def test_the_printed_table_is_read() -> None:
    assert guards.parse(TABLE) == {"wordcount.calls": 7.78, "wordcount.messages": 1e-05}
    assert guards.parse("no figures\nTraceback 1.2 3\n") == {}


def test_a_figure_may_grow_by_a_tenth() -> None:
    before = {"a.calls": 10.0, "b.calls": 0.01, "c.messages": 0.001, "d.calls": 5.0, "e.calls": 0.0}
    same = dict(before, **{"a.calls": 10.9, "b.calls": 0.05, "c.messages": 0.0011})
    assert guards.grown(before, same) == []
    more = {
        "a.calls": 11.1,
        "b.calls": 0.07,
        "c.messages": 0.0012,
        "e.calls": 1.0,
        "new.calls": 9.0,
    }
    assert guards.grown(before, more) == [
        "a.calls grew from 10 to 11.1 per record (+11%)",
        "b.calls grew from 0.01 to 0.07 per record (+600%)",
        "c.messages grew from 0.001 to 0.0012 per record (+20%)",
        "d.calls is not counted any more",
        "e.calls grew from 0 to 1 per record",
    ]


@pytest.fixture
def root(tmp_path: Path, monkeypatch) -> Path:
    """A tree whose program prints the counts in its engine; its revision is a copy of it."""
    root = tmp_path / "tree"
    for folder in ("penstock", "bench/counts"):
        (root / folder).mkdir(parents=True)
    for name in ("penstock/__init__.py", "bench/__init__.py", "bench/counts/__init__.py"):
        (root / name).write_text("")
    (root / "bench/counts/__main__.py").write_text(
        "from penstock.figures import TABLE; print(TABLE)"
    )

    def checked_out(_root: Path, revision: str, place: Path) -> str:
        for name in ("penstock", "bench/counts"):
            (place / name).mkdir(parents=True)
        for name in ("penstock/__init__.py", "bench/__init__.py", "bench/counts/__init__.py"):
            (place / name).write_text("")
        if revision == "broken":
            return revision
        module, variable = ("old", "OLD") if revision == "other" else ("figures", "TABLE")
        own = f"from penstock.{module} import {variable}; print({variable})"
        (place / "bench/counts/__main__.py").write_text(own)
        (place / f"penstock/{module}.py").write_text(f"{variable} = 'a.calls 10 11'")
        return revision

    monkeypatch.setattr(guards, "check_out", checked_out)
    return root


def engine(root: Path, table: str) -> None:
    (root / "penstock/figures.py").write_text(f"TABLE = {table!r}")


@pytest.mark.parametrize("revision", ["release", "other"])
def test_a_tree_that_does_more_fails(root: Path, revision: str, capsys) -> None:
    engine(root, "a.calls 10.5 11")
    guards.guard(revision, root)
    printed = capsys.readouterr().out
    assert "a.calls" in printed
    assert ("runs its own" in printed) == (revision == "other")
    engine(root, "a.calls 12 11")
    with pytest.raises(SystemExit, match=r"a\.calls grew from 10 to 12"):
        guards.guard(revision, root)


def test_an_engine_without_counts_is_an_error(root: Path, monkeypatch) -> None:
    engine(root, "a.calls 10.5 11")
    with pytest.raises(SystemExit, match="there are no counts"):
        guards.guard("broken", root)

    def refuse(*_: object) -> str:
        raise CompareError("no such revision")

    monkeypatch.setattr(guards, "check_out", refuse)
    with pytest.raises(SystemExit, match="no such revision"):
        guards.guard("nothing", root)
