"""Assign keys to key groups, and key groups to subtasks.

A key group is the unit in which keyed state is redistributed when the parallelism changes. Each
subtask owns a contiguous range of key groups. (Flink: `KeyGroupRangeAssignment`.)

`docs/inside/decisions/008-key-groups.md` has the reasons and the figures.
"""

from __future__ import annotations

import zlib


def key_group(canonical_bytes: bytes, max_parallelism: int) -> int:
    """Return the key group of a key, with `0 <= group < max_parallelism`.

    The hash is CRC-32, followed by the finalizer of MurmurHash3. CRC-32 alone would distribute
    similar keys ("user1", "user2", …) unevenly, because it is linear. For example, one of two
    subtasks could get two thirds of the keys.

    Arguments:
        canonical_bytes: the canonical bytes of the key; see `keys.canonical`.
        max_parallelism: the number of key groups.
    """
    mixed = zlib.crc32(canonical_bytes)
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return (mixed ^ mixed >> 16) % max_parallelism


def subtask_of_key_group(group: int, max_parallelism: int, parallelism: int) -> int:
    """Return the index of the subtask that owns a key group.

    Raises:
        ValueError: if the group or the parallelism is out of range.
    """
    _check_parallelism(max_parallelism, parallelism)
    if not 0 <= group < max_parallelism:
        raise ValueError(f"key group {group} is not in 0..{max_parallelism - 1}")
    return group * parallelism // max_parallelism


def key_group_range(subtask: int, max_parallelism: int, parallelism: int) -> range:
    """Return the range of key groups that a subtask owns.

    The range contains the key groups for which `subtask_of_key_group` returns the subtask.

    Raises:
        ValueError: if the subtask or the parallelism is out of range.
    """
    _check_parallelism(max_parallelism, parallelism)
    if not 0 <= subtask < parallelism:
        raise ValueError(f"subtask {subtask} is not in 0..{parallelism - 1}")
    # Divide and round up: the result is the first group g for which
    # `g * parallelism // max_parallelism` is the subtask.
    first = -(-subtask * max_parallelism // parallelism)
    end = -(-(subtask + 1) * max_parallelism // parallelism)
    return range(first, end)


def _check_parallelism(max_parallelism: int, parallelism: int) -> None:
    if not 1 <= parallelism <= max_parallelism:
        raise ValueError(
            f"parallelism {parallelism} is not in 1..{max_parallelism} (the maximum parallelism)"
        )
