"""The guide for users of PyFlink runs, and the tables of its names are true."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.dataflow.config.flink_keys import KEYS
from penstock.public_names import MODULE_OF

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guides" / "from-pyflink.md").read_text("utf-8")
TABLES = (ROOT / "docs" / "reference" / "pyflink.md").read_text("utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
#: The classes whose methods have a table of their own.
CLASSES = (
    "StreamExecutionEnvironment",
    "DataStream",
    "DataStreamSink",
    "KeyedStream",
    "WindowedStream",
    "AllWindowedStream",
    "ConnectedStreams",
    "BroadcastConnectedStream",
    "CheckpointConfig",
    "Configuration",
    "ExecutionConfig",
    "JobClient",
    "JobExecutionResult",
    "JobStatus",
    "MemorySize",
    "RestartStrategies",
    "SlotSharingGroup",
    "WatermarkStrategy",
)


def _rows() -> Iterator[tuple[str, str, str]]:
    """Yield the heading, the name and the verdict of each row of the tables of names."""
    heading = ""
    for line in TABLES.splitlines():
        if line.startswith("#"):
            heading = line.strip("# ")
        found = re.match(r"\| `(\w+)` \| (\w+) \|", line)
        if found is not None:
            yield heading, found[1], found[2]


ROWS = list(_rows())


@pytest.mark.parametrize("imports", ["from penstock import", r"from penstock\1 import"])
@pytest.mark.parametrize("source", PROGRAMS, ids=range(len(PROGRAMS)))
def test_a_program_of_pyflink_needs_other_imports_only(
    source: str, imports: str, monkeypatch: pytest.MonkeyPatch
):
    source = re.sub(r"^from pyflink([\w.]*) import", imports, source, flags=re.M)
    collect = partialmethod(penstock.DataStream.execute_and_collect, in_process=True)
    monkeypatch.setattr(penstock.DataStream, "execute_and_collect", collect)
    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(ast.parse(source), "from-pyflink.md", "exec"), names)
    results = names.get("results")
    if "views" in names:
        assert results == [("ann", 0, 2), ("ann", 60_000, 1), ("bob", 0, 1)]
    elif "words" in names:
        assert results == ["a", "b", "c"]


@pytest.mark.parametrize(("heading", "name", "verdict"), ROWS)
def test_a_verdict_is_true(heading: str, name: str, verdict: str):
    assert verdict in ("same", "differs", "missing")
    if heading in CLASSES:
        holder = getattr(penstock, heading)
        if heading == "StreamExecutionEnvironment":
            holder = holder.get_execution_environment()
        assert hasattr(holder, name) == (verdict != "missing")
    else:
        assert (name in MODULE_OF) == (verdict != "missing")


def test_each_missing_method_has_advice_in_its_error():
    env: Any = penstock.StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([1])
    for heading, name, verdict in ROWS:
        holder = {"StreamExecutionEnvironment": env, "DataStream": stream}.get(heading)
        if holder is not None and verdict == "missing":
            with pytest.raises(penstock.GraphError, match=f"has no '{name}': "):
                getattr(holder, name)


def test_all_keys_with_a_meaning_are_listed():
    for key, (attribute, _) in KEYS.items():
        assert f"| `{key}` | `{attribute}` |\n" in TABLES
    assert len(re.findall(r"^\| `[a-z]+[.-][\w.-]+` \| `", TABLES, re.M)) == len(KEYS)
