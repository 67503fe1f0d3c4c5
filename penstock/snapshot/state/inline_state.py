"""Packs a small state into the handle of its snapshot, so that it needs no files.

    msgpack: [[[key, value], ...], ...]    a list of entries for each state, in the order of ids

`key` and `value` are the original key and the value, encoded by the codec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import msgpack

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.graph.keys import plain_keys
from penstock.snapshot.state.entries import StateCodec, encode_entries
from penstock.snapshot.state.slices import SliceTimer, Work
from penstock.snapshot.state.state_layout import CapturedTable
from penstock.snapshot.state.tables import Tables

# The overhead of msgpack for an entry in bytes: one list and two byte strings.
_ENTRY_BYTES = 6


def pack_inline(
    tables: Tables,
    states: int,
    captured: Sequence[CapturedTable],
    codec: StateCodec,
    threshold: int,
    timer: SliceTimer,
    is_aborted: Callable[[], bool],
) -> Work[bytes | None]:
    """Pack all entries of a snapshot into bytes.

    Arguments:
        tables: the tables of the backend, which estimate how many entries to encode in one step.
        states: the number of states at the time when the snapshot was captured.
        captured: the captured tables, with all their entries.
        codec: the codec, which encodes keys and values.
        threshold: the largest packed size, in bytes.
        timer: the timer of the current slice.
        is_aborted: a function that returns whether the snapshot was aborted.

    Returns:
        The packed entries, or None if they exceed `threshold` or the snapshot was aborted.
    """
    if threshold == 0:
        return None
    maps = {part.table_id: part.entries() for part in captured}
    packed_states: list[list[tuple[bytes, bytes]]] = []
    size = 0
    for table_id in range(states):
        pairs: list[tuple[bytes, bytes]] = []
        packed_states.append(pairs)
        entries = maps.get(table_id, {})
        if (has_expired := tables[table_id].has_expired) is not None:
            entries = {key: v for key, v in entries.items() if not has_expired(key, v)}
        keys, values = iter(entries), iter(entries.values())
        chunk = tables[table_id].size.chunk_entries()
        while some := list(islice(keys, chunk)):
            encoded, _ = encode_entries(codec, list(islice(values, chunk)))
            for key, data in zip(codec.encode_values(plain_keys(some)), encoded, strict=True):
                if data is not None:
                    pairs.append((key, data))
                    size += len(key) + len(data) + _ENTRY_BYTES
            if size > threshold:
                return None
            if timer.is_over(len(some)):
                yield None
                if is_aborted():
                    return None
                timer.restart()
    packed: bytes = msgpack.packb(packed_states)
    return packed if len(packed) <= threshold else None


def unpack_inline(
    codec: StateCodec, packed: bytes, states: Sequence[str]
) -> Iterator[tuple[str, list[tuple[object, bytes]]]]:
    """Yield the name of each packed state, with its entries as keys and encoded values."""
    decode = codec.decode_value
    for state, pairs in zip(states, msgpack.unpackb(packed), strict=True):
        with naming_state(state):
            entries = [(decode(key), data) for key, data in pairs]
        yield state, entries


@contextmanager
def naming_state(state: str) -> Iterator[None]:
    """Raise a `ProtocolError` that names the state if the block cannot decode an entry of it."""
    try:
        yield
    except ProtocolError as error:
        raise ProtocolError(f"state {state!r}: {error}") from error
