"""Writers that are closed between `prepare` and the function that it returned."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.connectors import FileSink
from penstock.connectors.cache import CacheSink
from penstock.dataflow.sink import Sink, WriterContext
from penstock.runtime.operators.collect_sink import CollectSink
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry


def _open_files(folder: Path) -> list[str]:
    files = [path.resolve() for path in Path("/proc/self/fd").iterdir() if path.exists()]
    return [path.name for path in files if path.is_relative_to(folder)]


@pytest.mark.parametrize("kind", [FileSink, CacheSink, CollectSink])
def test_an_attempt_that_ends_before_its_output_is_staged_leaves_no_open_file(
    kind: type[Sink], tmp_path: Path
):
    sink = kind(str(tmp_path))  # type: ignore[call-arg]
    writer = sink.create_writer(WriterContext("uid", "Sink", 0, 1, 1, "lineage"))
    writer.use_codec(Codec(TypeRegistry()))
    writer.open()
    writer.write(["a"])
    finish = writer.prepare(1)
    assert finish is not None
    assert len(finish()) == 1
    writer.write(["b"])
    assert writer.prepare(2) is not None  # the attempt ends before this function is called
    writer.write(["c"])
    assert len(_open_files(tmp_path)) == 2
    writer.close()
    assert _open_files(tmp_path) == []
