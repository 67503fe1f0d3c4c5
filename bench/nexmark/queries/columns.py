"""The queries q1, q2, q14 and q17 on columns of Arrow, beside the same queries on records.

They get the bids as Arrow batches, and emit Arrow batches. No Python object is made for a value.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any

from bench.nexmark.queries.query import Query
from penstock import DataStream

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["QUERIES"]

EUROS = Decimal("0.908")
MS_OF_HOUR, MS_OF_DAY = 3_600_000, 86_400_000


def convert_currency(bids: DataStream) -> DataStream:
    """q1: emit the bids with their prices in euros."""
    return bids.map_batches(with_euros)


def with_euros(bids: pa.RecordBatch) -> pa.RecordBatch:
    """Return bids with their prices in euros."""
    import pyarrow as pa

    euros = euros_of(bids["price"])
    columns = [bids["auction"], bids["bidder"], euros, bids["date_time"], bids["extra"]]
    return pa.record_batch(columns, ["auction", "bidder", "price", "date_time", "extra"])


def euros_of(prices: pa.Array) -> Any:
    """Return prices in euros, as decimals."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.multiply(pc.cast(prices, pa.decimal128(19, 0)), pa.scalar(EUROS))


def select(bids: DataStream) -> DataStream:
    """q2: emit the bids on every 123rd auction."""
    return bids.map_batches(on_every_123rd)


def on_every_123rd(bids: pa.RecordBatch) -> pa.RecordBatch:
    """Return the bids on every 123rd auction."""
    import pyarrow.compute as pc

    rest = remainder(bids["auction"], 123)
    return bids.filter(pc.equal(rest, 0)).select(["auction", "price"])


def remainder(numbers: pa.Array, divisor: int) -> Any:
    """Return the remainders of a division, for which Arrow has no function."""
    import pyarrow.compute as pc

    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, divisor), divisor))


def calculate(bids: DataStream) -> DataStream:
    """q14: emit bids of a range of prices, with the kind of time and a count of letters."""
    return bids.map_batches(middling_bids)


def middling_bids(bids: pa.RecordBatch) -> pa.RecordBatch:
    """Return the bids of a range of prices, described."""
    import pyarrow as pa
    import pyarrow.compute as pc

    euros = euros_of(bids["price"])
    low, high = pc.greater(euros, Decimal(1_000_000)), pc.less(euros, Decimal(50_000_000))
    wanted = pc.and_(low, high)
    bids, euros = bids.filter(wanted), euros.filter(wanted)
    hours = remainder(pc.divide(bids["date_time"], MS_OF_HOUR), 24)
    day = pc.and_(pc.greater_equal(hours, 8), pc.less_equal(hours, 18))
    night = pc.or_(pc.less_equal(hours, 6), pc.greater_equal(hours, 20))
    kinds = pc.if_else(day, "dayTime", pc.if_else(night, "nightTime", "otherTime"))
    letters = pc.count_substring(bids["extra"], "c")
    columns = [bids["auction"], bids["bidder"], euros, kinds, bids["date_time"], bids["extra"]]
    names = ["auction", "bidder", "price", "kind", "date_time", "extra", "letters"]
    return pa.record_batch([*columns, letters], names)


def report_of_auction(bids: DataStream) -> DataStream:
    """q17: how many bids had an auction in a day, and what were their prices?"""
    reports = (
        bids.map_batches(with_ranks)
        .group_by("auction", "day")
        .agg(
            bids=("*", "count"),
            low=("low", "sum"),
            middle=("middle", "sum"),
            high=("high", "sum"),
            least=("price", "min"),
            most=("price", "max"),
            total=("price", "sum"),
        )
    )
    return reports.map_batches(with_average)


def with_ranks(bids: pa.RecordBatch) -> pa.RecordBatch:
    """Return the auction, the day and the price of bids, and a 1 in the column of their rank."""
    import pyarrow as pa
    import pyarrow.compute as pc

    prices, days = bids["price"], pc.divide(bids["date_time"], MS_OF_DAY)
    low, high = pc.less(prices, 10_000), pc.greater_equal(prices, 1_000_000)
    middle = pc.invert(pc.or_(low, high))
    ranks = [pc.cast(rank, pa.int64()) for rank in (low, middle, high)]
    names = ["auction", "day", "price", "low", "middle", "high"]
    return pa.record_batch([bids["auction"], days, prices, *ranks], names)


def with_average(reports: pa.RecordBatch) -> pa.RecordBatch:
    """Return reports with the average price and the date, in the order of the published query."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # A batch has thousands of rows and few days, and writing a date takes half a microsecond.
    days = reports["day"].dictionary_encode()
    numbers = pc.cast(days.dictionary, pa.int32())
    dates = pc.strftime(pc.cast(numbers, pa.date32()), "%Y-%m-%d").take(days.indices)
    counts = [reports[name] for name in ("bids", "low", "middle", "high", "least", "most")]
    average = pc.divide(reports["total"], reports["bids"])
    columns = [reports["auction"], dates, *counts, average, reports["total"]]
    names = ["auction", "day", "bids", "low", "middle", "high", "least", "most", "average"]
    return pa.record_batch(columns, [*names, "total"])


QUERIES = (
    Query("q1-columns", "the same on columns", convert_currency, 30_000_000, columns=True),
    Query("q2-columns", "the same on columns", select, 30_000_000, columns=True),
    Query("q14-columns", "the same on columns", calculate, 30_000_000, columns=True),
    Query("q17-columns", "the same on columns", report_of_auction, 6_000_000, 2, columns=True),
)
