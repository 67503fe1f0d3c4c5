"""Key groups: from a key's canonical bytes to its group, and from a group to its subtask.

A key group is the unit in which keyed state moves when a job is rescaled. Each subtask owns a
contiguous range of groups. (Flink: `KeyGroupRangeAssignment`.)
"""

from __future__ import annotations

import zlib

__all__ = ["key_group", "key_group_range", "subtask_of_key_group"]


def key_group(canonical_bytes: bytes, max_parallelism: int) -> int:
    """Return the key group of a key's canonical bytes, with `0 <= group < max_parallelism`.

    The hash is CRC-32 followed by the finalizer of MurmurHash3. A CRC alone is linear: of keys
    that differ in a digit or two ("user1", "user2", …), two thirds may share any given bit, and
    therefore one of two subtasks.
    """
    mixed = zlib.crc32(canonical_bytes)
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return (mixed ^ mixed >> 16) % max_parallelism


def subtask_of_key_group(group: int, max_parallelism: int, parallelism: int) -> int:
    """Return the index of the subtask that owns a key group.

    Raises ValueError if the group or the parallelism is out of range.
    """
    _check_parallelism(max_parallelism, parallelism)
    if not 0 <= group < max_parallelism:
        raise ValueError(f"key group {group} is not in 0..{max_parallelism - 1}")
    return group * parallelism // max_parallelism


def key_group_range(subtask: int, max_parallelism: int, parallelism: int) -> range:
    """Return the contiguous key groups of a subtask; consistent with `subtask_of_key_group`.

    Raises ValueError if the subtask or the parallelism is out of range.
    """
    _check_parallelism(max_parallelism, parallelism)
    if not 0 <= subtask < parallelism:
        raise ValueError(f"subtask {subtask} is not in 0..{parallelism - 1}")
    # Ceilings: the first group g with g * parallelism // max_parallelism == subtask.
    first = -(-subtask * max_parallelism // parallelism)
    end = -(-(subtask + 1) * max_parallelism // parallelism)
    return range(first, end)


def _check_parallelism(max_parallelism: int, parallelism: int) -> None:
    if not 1 <= parallelism <= max_parallelism:
        raise ValueError(
            f"parallelism {parallelism} is not in 1..{max_parallelism} (the maximum parallelism)"
        )
