"""The speed of light for a map chain, a keyed count and a join in two Python processes.

As `limit_wordcount.py` is for the word count: each process makes its half of the input, routes by
a memoised CRC-32, ships what is not its own as msgpack batches of bare columns over a socket pair,
which a thread reads, and does what the shape asks for. No records as objects, no user functions,
no output, no snapshots: what is left out is what an engine adds. `bench limit` runs it beside the
same job on the engine, and compares the results of both with `expected`.

    python limit_shapes.py SHAPE RECORDS      prints one JSON object; needs msgpack

The shapes are `map` (two maps and two filters in one loop), `map_called` (the same with each of the
four as a function that is called, as by an engine that is handed them), `count` (records of each
key) and `join` (two streams; for each record, what has come of its key on either side so far).
This is NOT a part of the engine, and imports nothing of it.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

import msgpack

__all__ = [
    "COUNT_FACTOR",
    "KEYS",
    "LEFT_FACTOR",
    "RIGHT_FACTOR",
    "SHAPES",
    "VALUES",
    "expected",
    "flip",
    "joined_sum",
    "not_by_five",
    "not_by_seven",
    "triple",
]

BATCH = 4_096
#: So many records are made between two looks at what has arrived.
CHUNK = 4_000
#: Primes, so that numbered records wander through all keys.
KEYS, COUNT_FACTOR, LEFT_FACTOR, RIGHT_FACTOR = 10_007, 7_919, 31, 101
VALUES = 1_000


def triple(x: int) -> int:
    """Apply the first step of the map chain."""
    return x * 3 + 1


def not_by_five(x: int) -> bool:
    """Return whether the second step keeps a record."""
    return x % 5 != 0


def flip(x: int) -> int:
    """Apply the third step."""
    return x ^ 0x5555


def not_by_seven(x: int) -> bool:
    """Return whether the fourth step keeps a record."""
    return x % 7 != 0


def joined_sum(key: int, left: int, right: int) -> int:
    """Return a key's part of the checksum of a join; its sides have different weights."""
    return (key + 1) * (3 * left + right)


def expected(shape: str, records: int) -> list[int]:
    """Return the expected number of records, checksum and number of keys of a shape."""
    if shape in ("map", "map_called"):
        kept = [y for x in range(records) if not_by_five(triple(x)) and (y := flip(triple(x))) % 7]
        return [len(kept), sum(kept)]
    if shape == "count":
        # Record x has the key x * FACTOR % KEYS, so the records of a key are those of one residue.
        counts = {
            residue * COUNT_FACTOR % KEYS: len(range(residue, records, KEYS))
            for residue in range(min(KEYS, records))
        }
        return [records, len(counts), sum(key * count for key, count in counts.items())]
    sums: dict[int, list[int]] = {}
    for side, factor in enumerate((LEFT_FACTOR, RIGHT_FACTOR)):
        for x in range(records // 2):
            sums.setdefault(x * factor % KEYS, [0, 0])[side] += x % VALUES
    total = sum(joined_sum(key, left, right) for key, (left, right) in sums.items())
    return [records // 2 * 2, len(sums), total]


class Peer:
    """The other process: sends batches there, and has a thread that reads what comes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received: SimpleQueue[bytes | None] = SimpleQueue()
        self._done = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        stream = self._connection.makefile("rb", 1 << 20)
        while True:
            (size,) = struct.unpack("<I", stream.read(4))
            if not size:
                self._received.put(None)
                return
            self._received.put(stream.read(size))

    def send(self, batch: Any) -> None:
        """Send a batch."""
        payload = msgpack.packb(batch)
        self._connection.sendall(struct.pack("<I", len(payload)) + payload)

    def end(self) -> None:
        """Say that no more batches follow."""
        self._connection.sendall(struct.pack("<I", 0))

    def arrived(self) -> Iterator[Any]:
        """Return the batches that have arrived."""
        while not self._received.empty():
            yield from self._take()

    def rest(self) -> Iterator[Any]:
        """All batches up to the end."""
        while not self._done:
            yield from self._take()

    def _take(self) -> Iterator[Any]:
        payload = self._received.get()
        if payload is None:
            self._done = True
        else:
            yield msgpack.unpackb(payload)


class Router(dict[int, Any]):
    """key → where its records go; the CRC is taken once per key."""

    def __init__(self, targets: Any) -> None:
        super().__init__()
        self._targets = targets

    def __missing__(self, key: int) -> Any:
        target = self[key] = self._targets[zlib.crc32(b"%d" % key) & 1]
        return target


def map_chain(me: int, records: int, connection: socket.socket) -> list[int]:
    """Two maps and two filters; nothing goes to the other process."""
    del connection
    kept = total = 0
    for x in range(me, records, 2):
        x = x * 3 + 1
        if x % 5:
            x ^= 0x5555
            if x % 7:
                kept += 1
                total += x
    return [kept, total]


def map_chain_called(me: int, records: int, connection: socket.socket) -> list[int]:
    """Run the same, by functions."""
    del connection
    kept = total = 0
    for x in range(me, records, 2):
        x = triple(x)
        if not_by_five(x):
            x = flip(x)
            if not_by_seven(x):
                kept += 1
                total += x
    return [kept, total]


def keyed_count(me: int, records: int, connection: socket.socket) -> list[int]:
    """Return the number of records of each key."""
    peer = Peer(connection)
    counts: dict[int, int] = {}
    get = counts.get
    outputs: tuple[list[int], list[int]] = ([], [])
    own, other = outputs[me], outputs[1 - me]
    router = Router([output.append for output in outputs])

    def count(keys: list[int]) -> None:
        for key in keys:
            counts[key] = get(key, 0) + 1

    for start in range(me, records, 2 * CHUNK):
        for x in range(start, min(start + 2 * CHUNK, records), 2):
            key = x * COUNT_FACTOR % KEYS
            router[key](key)
        if len(own) >= BATCH:
            count(own)
            own.clear()
        if len(other) >= BATCH:
            peer.send(other)
            other.clear()
        for batch in peer.arrived():
            count(batch)
    count(own)
    peer.send(other)
    peer.end()
    for batch in peer.rest():
        count(batch)
    return [sum(counts.values()), len(counts), sum(key * n for key, n in counts.items())]


def join(me: int, records: int, connection: socket.socket) -> list[int]:
    """For each record, the sum of its key's values so far, of either side."""
    peer = Peer(connection)
    sides: tuple[dict[int, int], dict[int, int]] = ({}, {})
    joined: dict[int, tuple[int, int]] = {}
    # Per side and process, a column of keys and one of values.
    outputs = [[([], []), ([], [])] for _ in sides]  # type: ignore[var-annotated]
    routers = [
        Router([(keys.append, values.append) for keys, values in output]) for output in outputs
    ]
    seen = 0

    def take(side: int, keys: list[int], values: list[int]) -> None:
        nonlocal seen
        seen += len(keys)
        sums, get = sides[side], sides[side].get
        get_other = sides[1 - side].get
        if side:
            for key, value in zip(keys, values, strict=True):
                sums[key] = total = get(key, 0) + value
                joined[key] = (get_other(key, 0), total)
        else:
            for key, value in zip(keys, values, strict=True):
                sums[key] = total = get(key, 0) + value
                joined[key] = (total, get_other(key, 0))

    def hand_over(least: int) -> None:
        for side, output in enumerate(outputs):
            for process, (keys, values) in enumerate(output):
                if len(keys) >= least:
                    if process == me:
                        take(side, keys, values)
                    else:
                        peer.send([side, keys, values])
                    keys.clear()
                    values.clear()

    half = records // 2
    for start in range(me, half, CHUNK):
        for x in range(start, min(start + CHUNK, half), 2):
            value = x % VALUES
            key = x * LEFT_FACTOR % KEYS
            add_key, add_value = routers[0][key]
            add_key(key)
            add_value(value)
            key = x * RIGHT_FACTOR % KEYS
            add_key, add_value = routers[1][key]
            add_key(key)
            add_value(value)
        hand_over(BATCH)
        for batch in peer.arrived():
            take(*batch)
    hand_over(0)
    peer.end()
    for batch in peer.rest():
        take(*batch)
    return [seen, len(joined), sum(joined_sum(key, *pair) for key, pair in joined.items())]


SHAPES: dict[str, Callable[[int, int, socket.socket], list[int]]] = {
    "map": map_chain,
    "map_called": map_chain_called,
    "count": keyed_count,
    "join": join,
}


def main() -> None:
    """Run one shape, and print its result and how long it took."""
    shape, records = sys.argv[1], int(sys.argv[2])
    ends, pipes, pids = socket.socketpair(), [os.pipe(), os.pipe()], []
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    start = time.perf_counter()
    for me in (0, 1):
        pid = os.fork()
        if pid == 0:
            ends[1 - me].close()
            result = SHAPES[shape](me, records, ends[me])
            os.write(pipes[me][1], msgpack.packb(result))
            os._exit(0)
        pids.append(pid)
    for end in ends:
        end.close()
    failed = [pid for pid in pids if os.waitpid(pid, 0)[1]]
    seconds = time.perf_counter() - start
    if failed:
        raise SystemExit("a process of the limit program failed; its traceback is above")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    parts = [msgpack.unpackb(os.read(read, 1 << 16)) for read, _ in pipes]
    print(
        json.dumps(
            {
                "result": [sum(part) for part in zip(*parts, strict=True)],
                "seconds": round(seconds, 3),
                "limit_records_per_second": round(records / seconds),
                "cpu_ns_per_record": round((used.ru_utime + used.ru_stime) / records * 1e9, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
