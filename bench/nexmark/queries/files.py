"""The query that writes files: q10."""

from __future__ import annotations

from pathlib import Path

from bench.nexmark.model import Bid, is_bid
from bench.nexmark.queries.query import Query, Row, day_of, minute_of
from penstock import CsvRows, DataStream, FileSink

__all__ = ["QUERIES"]

FORMAT = CsvRows(["auction", "bidder", "price", "date_time", "extra", "dt", "hm"], header=False)


def log_bids(events: DataStream) -> DataStream:
    """q10: write all bids to files, with their day and minute."""
    return events.filter(is_bid).map(with_day_and_minute)


def with_day_and_minute(bid: Bid) -> Row:
    """Return a bid with its day and its minute."""
    time = bid.date_time
    day, minute = day_of(time // 86_400_000), minute_of(time // 60_000)
    return bid.auction, bid.bidder, bid.price, time, bid.extra, day, minute


def write(bids: DataStream, folder: Path) -> None:
    """Write the bids to files in a folder."""
    bids.sink_to(FileSink(folder, FORMAT))


def read(folder: Path) -> list[Row]:
    """Return the bids in the files of a folder."""
    rows = [
        line.split(",") for path in folder.glob("part-*") for line in path.read_text().splitlines()
    ]
    return [(int(a), int(b), int(c), int(d), *texts) for a, b, c, d, *texts in rows]


QUERIES = (Query("q10", "log to files", log_bids, events=4_000_000, write=write, read=read),)
