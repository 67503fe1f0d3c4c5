"""Count the words of objects, and write the counts to objects: exactly once, as Parquet.

It starts a server of the S3 protocol on this machine. With another bucket, it needs a URL and the
credentials in the environment only.

    pip install 'penstock[object-store,columns]' 'moto[server]'
    python examples/connectors/object_store.py
"""

from tempfile import TemporaryDirectory

import obstore

from penstock import StreamExecutionEnvironment
from penstock.connectors.object_store import (
    ObjectStore,
    ObjectStoreSink,
    ObjectStoreSource,
    ParquetRows,
)
from penstock.testing.servers.s3 import S3Server


def count_words(text: ObjectStore, counts: ObjectStore) -> None:
    """Read the lines of `text`, and write each running count to `counts`, by first letter."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1000)
    words = env.from_source(ObjectStoreSource(text)).flat_map(str.split)
    rows = words.key_by(lambda word: word).count().map(lambda pair: {"word": pair[0], "n": pair[1]})
    sink = ObjectStoreSink(
        counts,
        ParquetRows(schema={"word": "string", "n": "int64"}),
        partition_by=lambda row: f"first={row['word'][0]}",
        compact_bytes=1 << 20,
    )
    rows.sink_to(sink)
    env.execute("words of objects")


def main() -> None:
    with TemporaryDirectory() as folder, S3Server(folder) as server:
        server.create_bucket("example")
        text = ObjectStore("s3://example/text/*.txt", **server.options)
        counts = ObjectStore("s3://example/counts", **server.options)
        obstore.put(text.open(), "text/1.txt", b"to be or not\n")
        obstore.put(text.open(), "text/2.txt", b"to be\n")
        count_words(text, counts)
        env = StreamExecutionEnvironment.get_execution_environment()
        rows = env.from_source(ObjectStoreSource(counts, ParquetRows()))
        for row in sorted(rows.execute_and_collect(), key=lambda row: (row["word"], row["n"])):
            print(row["word"], row["n"])


if __name__ == "__main__":
    main()
