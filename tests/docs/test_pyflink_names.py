"""Each public name of PyFlink is there, or is refused with a sentence, and has a row on the page.

`data/pyflink_names.json` has the names of `pyflink.common` and `pyflink.datastream` in versions
1.20.1 and 2.3.0, each with its module, and the methods of the classes that a program calls.
"""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.dataflow.arguments.refused_names import REFUSED_NAMES, MissingNameError
from penstock.public_names import MODULE_OF

FROZEN = json.loads((Path(__file__).parent / "data" / "pyflink_names.json").read_text("utf-8"))
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "pyflink.md").read_text("utf-8")
#: Its methods differ from those of a stream in `invalidate` only.
OTHER_CLASSES = {"CachedDataStream"}


@pytest.mark.parametrize("name", FROZEN["names"])
def test_each_name_is_there_or_is_refused_with_a_sentence(name: str):
    assert f"\n| `{name}` | " in PAGE
    if name in MODULE_OF:
        assert getattr(penstock, name) is not None
        return
    with pytest.raises(MissingNameError) as caught:
        getattr(penstock, name)
    assert str(caught.value) == f"Penstock has no {name}: {REFUSED_NAMES[name]}"


@pytest.mark.parametrize(
    ("cls", "method"),
    [
        (cls, method)
        for cls, methods in FROZEN["methods"].items()
        if cls not in OTHER_CLASSES
        for method in methods
    ],
)
def test_each_method_is_there_or_is_refused_with_a_sentence(cls: str, method: str):
    holder: Any = getattr(penstock, cls)
    refused = getattr(holder, "_missing", {})
    assert hasattr(holder, method) != (method in refused), refused.get(method)


def test_an_import_of_a_refused_name_says_what_to_use():
    with pytest.raises(ImportError, match="no connector for Pulsar: write a PollingSource"):
        from penstock import PulsarSource  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ImportError, match="cannot import name 'Nonsense'"):
        from penstock import Nonsense  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(penstock.GraphError):
        penstock.BucketAssigner  # type: ignore[attr-defined]  # noqa: B018


def test_names_are_imported_from_the_modules_of_pyflink():
    for name, module in FROZEN["names"].items():
        if name not in MODULE_OF or module == "pyflink.common.utils":
            continue
        for place in (module, ".".join(module.split(".")[:2])):
            ours = importlib.import_module(place.replace("pyflink", "penstock", 1))
            assert getattr(ours, name) is getattr(penstock, name)
    with pytest.raises(ImportError, match="no connector for Pulsar"):
        from penstock.datastream.connectors.pulsar import PulsarSource  # noqa: F401
    with pytest.raises(ImportError):
        from penstock.datastream.functions import Nonsense  # noqa: F401


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("penstock.table", "it has no tables and no SQL"),
        ("penstock.table.types", "it has no tables and no SQL"),
        ("penstock.java_gateway", "it is for the JVM"),
        ("penstock.util.java_utils", "it is for the JVM"),
        ("penstock.ml.core", "it has no machine learning"),
    ],
)
def test_an_import_of_a_module_that_only_pyflink_has_says_what_to_use(module: str, reason: str):
    with pytest.raises(MissingNameError, match=reason):
        importlib.import_module(module)
    with pytest.raises(MissingNameError, match=reason):
        exec(f"from {module} import Something")
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'penstock\.nonsense'"):
        importlib.import_module("penstock.nonsense")


def test_the_frozen_names_were_not_shortened():
    assert len(FROZEN["names"]) > 200 and len(FROZEN["methods"]) > 20
