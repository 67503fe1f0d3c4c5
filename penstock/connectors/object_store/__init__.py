"""Read and write objects in S3, Google Cloud Storage, Azure and the like, through obstore.

`penstock/object_store.py` opens a store, and describes its errors. `object_file.py` reads an object
by ranges. `object_source.py` and `object_sink.py` share the code of `FileSource` and `FileSink`.
"""

from __future__ import annotations

from penstock.connectors.object_store.object_sink import ObjectStoreSink
from penstock.connectors.object_store.object_source import ObjectStoreSource
from penstock.connectors.object_store.parquet_rows import ParquetRows
from penstock.object_store import ObjectStore

__all__ = ["ObjectStore", "ObjectStoreSink", "ObjectStoreSource", "ParquetRows"]
