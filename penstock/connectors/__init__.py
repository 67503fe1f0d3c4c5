"""Sources and sinks for collections, numbers, generators, iterables, files and sockets.

They implement the interfaces of `penstock.dataflow.source` and `penstock.dataflow.sink`. They do
not depend on processes or channels. To learn the code, read `collection.py` first, because it is
the smallest source. Then read `file_source.py` and `file_sink.py`. `polling_source.py` and
`batch_sink.py` have the base classes for connectors of users. `docs/guides/connectors.md` is the
guide for users.
"""

from __future__ import annotations

from penstock.connectors.append_sinks import FunctionSink, PrintSink
from penstock.connectors.collection import (
    CollectionSource,
    NumberSequenceSource,
    SequenceSource,
)
from penstock.connectors.file_formats import CsvRows, FileFormat, JsonLines, LineFormat, TextLines
from penstock.connectors.file_sink import FileSink
from penstock.connectors.file_source import FileSource
from penstock.connectors.generator import GeneratorSource
from penstock.connectors.iterable import IterableSource
from penstock.connectors.sockets import SocketSource

__all__ = [
    "CollectionSource",
    "CsvRows",
    "FileFormat",
    "FileSink",
    "FileSource",
    "FunctionSink",
    "GeneratorSource",
    "IterableSource",
    "JsonLines",
    "NumberSequenceSource",
    "LineFormat",
    "PrintSink",
    "SequenceSource",
    "SocketSource",
    "TextLines",
]
