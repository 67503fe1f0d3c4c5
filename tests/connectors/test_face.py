"""The face of `penstock.connectors`: complete, documented, light."""

import subprocess
import sys
from pathlib import Path

import cloudpickle

import penstock.connectors
from penstock.connectors import (
    CollectionSource,
    CsvRows,
    FileSink,
    FileSource,
    FunctionSink,
    GeneratorSource,
    IterableSource,
    JsonLines,
    PrintSink,
    SequenceSource,
    SocketSource,
)

DOCUMENT = Path(__file__).parents[2] / "docs" / "guides" / "connectors.md"


def test_every_public_name_has_a_docstring_and_a_place_in_the_documentation():
    text = DOCUMENT.read_text()
    for name in penstock.connectors.__all__:
        assert getattr(penstock.connectors, name).__doc__, name
        assert f"`{name}" in text, name


def test_every_source_and_sink_can_be_sent_to_a_worker():
    for connector in (
        CollectionSource([1, "a"]),
        SequenceSource(1, 3),
        GeneratorSource(lambda i: i, 3, 1.5),
        IterableSource(lambda: iter([1])),
        FileSource("x", CsvRows(["a"])),
        SocketSource("localhost", 9999),
        FileSink("x", JsonLines()),
        PrintSink("p"),
        FunctionSink(lambda record: None),
    ):
        copy = cloudpickle.loads(cloudpickle.dumps(connector))
        assert vars(copy).keys() == vars(connector).keys()


def test_importing_it_loads_nothing_heavy():
    heavy = {"pyspark", "pyarrow", "pandas", "numpy", "rocksdict", "asyncio"}
    code = f"import sys, penstock.connectors; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
