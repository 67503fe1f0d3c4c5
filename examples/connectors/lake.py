"""Follow a Delta table, and keep totals in an Iceberg table: exactly once, without Spark.

pip install 'penstock[delta,iceberg]'
python examples/connectors/lake.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory

import deltalake
import pyarrow as pa
from pyiceberg.catalog import load_catalog

from penstock import StreamExecutionEnvironment
from penstock.connectors.lake import DeltaSource, IcebergSink


def keep_totals(orders, table, catalog):
    """Read the orders that are there now, and upsert the total of each user."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1000)
    rows = env.from_source(DeltaSource(orders))  # discovery_seconds=10 follows the table
    pairs = rows.map(lambda row: (row["user"], row["amount"]))
    totals = pairs.key_by(lambda pair: pair[0]).reduce(lambda a, b: (a[0], a[1] + b[1]))
    totals.sink_to(IcebergSink(table, catalog, "upsert", keys=["user"]))
    env.execute("totals")


def main():
    with TemporaryDirectory() as name:
        folder = Path(name)
        orders = folder / "orders"
        for user, amount in (("ann", 5), ("bob", 3), ("ann", 2)):
            row = pa.table({"user": [user], "amount": [amount]})
            deltalake.write_deltalake(orders, row, mode="append")
        settings = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}",
        }
        catalog = load_catalog("lake", **settings)
        catalog.create_namespace("shop")
        schema = pa.schema([("user", pa.string()), ("total", pa.int64())])
        catalog.create_table("shop.totals", schema)
        keep_totals(orders, "lake.shop.totals", settings)
        rows = catalog.load_table("shop.totals").scan().to_arrow().to_pylist()
        for row in sorted(rows, key=lambda row: row["user"]):
            print(row["user"], row["total"])
        catalog.close()


if __name__ == "__main__":
    main()
