"""Read the rows of an SQLite table: a source with positions, for a guide to own connectors.

The position of a split is the `rowid` of its last row. So the table may grow while the job runs,
but rows must not be changed, and new rows must have higher ids.

    python examples/connectors/sqlite_source.py
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock import PollingSource, Split, SplitPoller, StreamExecutionEnvironment


class SqliteSource(PollingSource):
    """Reads the rows of a table as tuples.

    Arguments:
        path: the path of the database.
        table: the name of the table.
        splits: the number of parts in which the table is read at the same time.
        follow: whether to wait for new rows; if not, the source ends at the last row.
    """

    blocking = False  # a query of a local file takes a moment; it needs no thread

    def __init__(self, path, table, splits=4, follow=False):
        self.path, self.table, self.parts = str(path), table, splits
        self.bounded = not follow

    def splits(self):
        return [Split(f"{part} of {self.parts}", part) for part in range(self.parts)]

    def create_poller(self, split):
        return RowPoller(self, split.payload)


class RowPoller(SplitPoller):
    """Reads the rows whose id leaves the remainder `part`."""

    def __init__(self, source, part):
        self.source = source
        self.query = (
            f'SELECT rowid, * FROM "{source.table}" '
            f"WHERE rowid > ? AND rowid % {source.parts} = {part} ORDER BY rowid LIMIT ?"
        )
        self.database = sqlite3.connect(source.path, timeout=60)

    def seek(self, position):
        self.last = position or 0

    def poll(self, max_records):
        rows = self.database.execute(self.query, (self.last, max_records)).fetchall()
        if not rows:
            return None if self.source.bounded else []
        self.last = rows[-1][0]
        return [row[1:] for row in rows]

    def position(self):
        return self.last

    def close(self):
        self.database.close()


def main():
    with TemporaryDirectory() as folder:
        path = Path(folder) / "shop.db"
        with closing(sqlite3.connect(path)) as database, database:
            database.execute("CREATE TABLE orders (product TEXT, quantity INTEGER)")
            database.executemany(
                "INSERT INTO orders VALUES (?, ?)", [("tea", 2), ("salt", 1), ("tea", 3)]
            )
        env = StreamExecutionEnvironment.get_execution_environment()
        orders = env.from_source(SqliteSource(path, "orders"))
        large = orders.filter(lambda order: order[1] > 1)
        print(sorted(large.execute_and_collect("large orders")))


if __name__ == "__main__":
    main()
