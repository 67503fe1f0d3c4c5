"""Each public class has an example in its docstring, and each example is run.

In an example, `Path` and the names of `penstock` and of `penstock.testing` are imported. `env` is a
new environment whose jobs run inside the process. `clicks` is a stream of users and times in
milliseconds, with event time.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.testing
from penstock.public_names import MODULE_OF

#: `execute_async` starts processes.
IN_PROCESSES = {"JobClient", "JobID"}
PARSER = doctest.DocTestParser()

NAMES = {name: getattr(importlib.import_module(module), name) for name, module in MODULE_OF.items()}
NAMES |= {name: getattr(penstock.testing, name) for name in penstock.testing.__all__}
#: Two names of one class have one docstring.
CLASSES = {thing: name for name, thing in NAMES.items() if inspect.isclass(thing)}


def _namespace(example: str) -> dict[str, Any]:
    env = penstock.StreamExecutionEnvironment.get_execution_environment()
    names = {**NAMES, "__name__": "__main__", "Path": Path, "env": env}
    if "clicks." in example or "(clicks" in example:
        strategy = penstock.WatermarkStrategy.for_monotonous_timestamps()
        strategy = strategy.with_timestamp_assigner(lambda click, _: click[1])
        clicks = env.from_collection(
            [("ann", 1_000), ("bob", 2_000), ("ann", 4_000), ("ann", 12_000)]
        )
        names["clicks"] = clicks.assign_timestamps_and_watermarks(strategy)
    return names


@pytest.mark.parametrize("cls", CLASSES, ids=CLASSES.values())
def test_the_example_of_a_class_gives_what_it_says(
    cls: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    name = CLASSES[cls]
    example = cls.__doc__ or ""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENSTOCK_IN_PROCESS", str(name not in IN_PROCESSES).lower())
    test = PARSER.get_doctest(example, _namespace(example), name, inspect.getsourcefile(cls), None)
    assert test.examples, f"{name} has no example"
    report: list[str] = []
    doctest.DocTestRunner().run(test, out=report.append)
    assert not report, "".join(report)
