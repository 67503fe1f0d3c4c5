"""Write rows into an SQLite table exactly once: a transactional sink, for a guide to connectors.

A batch is first staged in a table of its own. When its snapshot is complete, one transaction moves
its rows into the table, and writes the key of the batch into a table of commits. A batch whose
key is there already was published before a failure, and is left out.

    python examples/connectors/sqlite_sink.py
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock import StreamExecutionEnvironment, TransactionalSink


class SqliteSink(TransactionalSink):
    """Inserts tuples into a table, which must exist.

    Arguments:
        path: the path of the database. All workers and the JobManager must reach it.
        table: the name of the table.
        columns: the names of its columns, in the order of the tuples.
    """

    def __init__(self, path, table, columns):
        self.path, self.table = str(path), table
        self.names = ", ".join(f'"{column}"' for column in columns)
        self.places = ", ".join("?" for _ in columns)

    def connect(self):
        # Each transaction waits for those of the other workers.
        database = sqlite3.connect(self.path, timeout=60, isolation_level=None)
        database.execute(
            f'CREATE TABLE IF NOT EXISTS "_staged_{self.table}" '
            f"(batch TEXT, lineage TEXT, uid TEXT, attempt INTEGER, {self.names})"
        )
        database.execute("CREATE TABLE IF NOT EXISTS _commits (batch TEXT PRIMARY KEY)")
        return database

    def flush(self, records, batch):
        place = (batch.key, batch.lineage, batch.uid, batch.attempt)
        with closing(self.connect()) as database:
            database.execute("BEGIN IMMEDIATE")
            database.executemany(
                f'INSERT INTO "_staged_{self.table}" VALUES (?, ?, ?, ?, {self.places})',
                [(*place, *record) for record in records],
            )
            database.execute("COMMIT")

    def commit(self, batches):
        staged = f'"_staged_{self.table}" WHERE batch = ?'
        with closing(self.connect()) as database:
            database.execute("BEGIN IMMEDIATE")
            for batch in batches:
                key = (batch.key,)
                if database.execute("INSERT OR IGNORE INTO _commits VALUES (?)", key).rowcount:
                    database.execute(
                        f'INSERT INTO "{self.table}" ({self.names}) '
                        f"SELECT {self.names} FROM {staged} ORDER BY rowid",
                        key,
                    )
                    database.execute(f"DELETE FROM {staged}", key)
            database.execute("COMMIT")

    def discard(self, lineage, uid, before_attempt):
        with closing(self.connect()) as database:
            return database.execute(
                f'DELETE FROM "_staged_{self.table}" WHERE lineage = ? AND uid = ? AND attempt < ?',
                (lineage, uid, before_attempt),
            ).rowcount


def main():
    with TemporaryDirectory() as folder:
        path = Path(folder) / "words.db"
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE TABLE words (word TEXT, length INTEGER)")
        env = StreamExecutionEnvironment.get_execution_environment()
        words = env.from_collection(["to", "be", "not"])
        words.map(lambda word: (word, len(word))).sink_to(
            SqliteSink(path, "words", ["word", "length"])
        )
        env.execute("words into SQLite")
        with closing(sqlite3.connect(path)) as database:
            print(database.execute("SELECT * FROM words ORDER BY word").fetchall())


if __name__ == "__main__":
    main()
