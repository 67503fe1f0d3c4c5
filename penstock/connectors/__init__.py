"""Sources and sinks: where records come from and where they go.

The contracts are in `penstock.dataflow.source` and `penstock.dataflow.sink`; this folder makes
them for collections, numbers, generators, iterables, files and sockets. It knows nothing of
processes, channels or snapshots: the runtime drives it. Start reading in `collection.py` (the
smallest source), then `files.py` and `file_sink.py`. For users: `docs/connectors.md`.
"""

from __future__ import annotations

from penstock.connectors.append_sinks import FunctionSink, PrintSink
from penstock.connectors.collection import CollectionSource, SequenceSource
from penstock.connectors.file_sink import FileSink
from penstock.connectors.files import FileSource
from penstock.connectors.formats import CsvRows, FileFormat, JsonLines, LineFormat, TextLines
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
    "LineFormat",
    "PrintSink",
    "SequenceSource",
    "SocketSource",
    "TextLines",
]
