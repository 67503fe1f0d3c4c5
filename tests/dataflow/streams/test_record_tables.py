"""`take` and `show`: the first records of a stream, as a list and as a table."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from penstock import GraphError, Row, StreamExecutionEnvironment
from penstock.dataflow.streams.record_table import RecordTable


class Pair(NamedTuple):
    left: int
    right: str


@dataclass
class Visit:
    user: str
    page: str


def _env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_in_process()


def test_take_stops_a_stream_without_an_end():
    numbers = _env().from_generator(lambda i: i * i)
    assert numbers.take(4) == [0, 1, 4, 9]
    assert numbers.take(2) == [0, 1]
    assert sorted(_env().from_collection([3, 1]).take(5)) == [1, 3]


@pytest.mark.parametrize("n", [0, -1, True, "x", 1.5])
def test_the_number_of_records_is_checked(n: Any):
    stream = _env().from_collection([1])
    for method in (stream.take, stream.show):
        with pytest.raises(GraphError, match="number of records"):
            method(n)


def test_show_prints_a_table(capsys: pytest.CaptureFixture[str]):
    _env().from_collection([("ada", 1), ("alan", 22)]).show(1)
    printed = capsys.readouterr().out
    assert "│ ada │ 1 │" in printed
    assert "alan" not in printed
    assert printed.endswith("the first 1 record\n")
    _env().from_collection([("ada", 1), ("alan", 22)]).show()
    assert capsys.readouterr().out.endswith("2 records\n")


def test_a_notebook_displays_the_table(monkeypatch: pytest.MonkeyPatch, capsys: Any):
    shown: list[Any] = []
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setattr(ipython, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setattr(display, "display", shown.append, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    _env().from_collection([{"user": "<ada>"}]).show()
    [table] = shown
    assert table._repr_html_() == (
        "<table><thead><tr><th>user</th></tr></thead>"
        "<tbody><tr><td>&lt;ada&gt;</td></tr></tbody></table><p>1 record</p>"
    )
    shell.kernel = None  # the IPython of a terminal
    _env().from_collection([{"user": "ada"}]).show()
    assert len(shown) == 1
    assert "│ ada  │" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("records", "columns", "cells"),
    [
        ([Pair(1, "a")], ["left", "right"], [["1", "a"]]),
        ([Visit("ada", "x")], ["user", "page"], [["ada", "x"]]),
        ([Row(user="ada", n=1)], ["n", "user"], [["1", "ada"]]),
        ([Row("ada", 1)], ["0", "1"], [["ada", "1"]]),
        ([{"a": 1}, {"b": None}], ["a", "b"], [["1", ""], ["", "None"]]),
        ([("x",), 5], ["0", "value"], [["x", ""], ["", "5"]]),
        ([[1, 2]], ["value"], [["[1, 2]"]]),
        (["y" * 300], ["value"], [["y" * 200 + "…"]]),
        ([], [], []),
    ],
)
def test_columns_are_the_fields_of_records(
    records: list[Any], columns: list[str], cells: list[list[str]]
):
    table = RecordTable(records)
    assert table.columns == columns
    assert table.cells() == cells
    assert table._repr_html_().startswith("<table>")


def test_a_table_is_readable_where_no_html_is_shown() -> None:
    lines = repr(RecordTable([{"user": "ann", "n": 1}], more=True)).splitlines()
    assert [word for line in lines for word in re.findall("[a-z0-9]+", line)] == [
        *("user", "n", "ann", "1"),
        *("the", "first", "1", "record"),
    ]
