"""Compare the output of two shadow runs over the same slice of input: `compare`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.runtime.shadow.shadow_code import ShadowEndpoint, endpoints_of
from penstock.runtime.shadow.sliced_source import SliceFiles, records_read

#: The number of differing records of each kind that a report has of a sink.
EXAMPLES = 5
#: The size of the output that is compared at a time, in bytes. Only its digests are in memory.
PART_BYTES = 512_000_000


@dataclass(frozen=True)
class SinkComparison:
    """The output of a sink in both programs, compared as multisets.

    Arguments:
        uid, name: those of the sink in the new program, or in the old one if it has no longer one.
        old, new: the number of records of each program; None if it has no such sink.
        only_old, only_new: the number of records that only one program has written.
        first_old, first_new: the texts of the first ones of these, in the order of the output.
    """

    uid: str
    name: str
    old: int | None
    new: int | None
    only_old: int
    only_new: int
    first_old: list[str]
    first_new: list[str]

    @property
    def equal(self) -> bool:
        """Whether both programs have the sink and have written the same records to it."""
        return self.old is not None and self.new is not None and not self.only_old + self.only_new


@dataclass(frozen=True)
class SourceComparison:
    """The records that both programs have read of a source since the snapshot.

    Arguments:
        uid, name: as in `SinkComparison`.
        old, new: the number of records; None if the program has no such source.
    """

    uid: str
    name: str
    old: int | None
    new: int | None


def compare(old: Path, new: Path) -> tuple[list[SourceComparison], list[SinkComparison]]:
    """Compare the runs of the old and of the new program, by the folders of the runs."""
    before, after = records_read(SliceFiles(old).read), records_read(SliceFiles(new).read)
    sources, sinks = [], []
    for one, other in _pairs(endpoints_of(old), endpoints_of(new)):
        shown = other or one
        assert shown is not None
        if shown.output:
            sinks.append(_compared(shown, one, other))
        else:
            # The run of the new program has counted under the uid of the old one.
            key = shown.uid if one is None else one.uid
            read = None if one is None else before.get(key, 0)
            again = None if other is None else after.get(key, 0)
            sources.append(SourceComparison(shown.uid, shown.name, read, again))
    return sources, sinks


def _pairs(
    old: list[ShadowEndpoint], new: list[ShadowEndpoint]
) -> Iterator[tuple[ShadowEndpoint | None, ShadowEndpoint | None]]:
    left = {(one.uid, bool(one.output)): one for one in old}
    for other in new:
        kind = bool(other.output)
        one = left.pop((other.uid, kind), None)
        if one is None and other.former_uid is not None:
            one = left.pop((other.former_uid, kind), None)
        yield one, other
    for one in left.values():
        yield one, None


def _compared(
    shown: ShadowEndpoint, one: ShadowEndpoint | None, other: ShadowEndpoint | None
) -> SinkComparison:
    old, new = _files(one), _files(other)
    size = sum(path.stat().st_size for path in (*old, *new))
    parts = 1 + size // PART_BYTES
    counts, only = [0, 0], [0, 0]
    first: tuple[list[str], list[str]] = ([], [])
    for part in range(parts):
        balance: Counter[bytes] = Counter()
        for side, paths in enumerate((old, new)):
            for digest, _ in _records(paths):
                if digest[0] % parts == part:
                    counts[side] += 1
                    balance[digest] += 1 if side else -1
        left = {digest: count for digest, count in balance.items() if count}
        only[0] -= sum(count for count in left.values() if count < 0)
        only[1] += sum(count for count in left.values() if count > 0)
        for side, paths in enumerate((old, new)):
            _take_first(first[side], paths, left, 1 if side else -1)
    return SinkComparison(
        shown.uid,
        shown.name,
        old=None if one is None else counts[0],
        new=None if other is None else counts[1],
        only_old=only[0],
        only_new=only[1],
        first_old=first[0],
        first_new=first[1],
    )


def _take_first(found: list[str], paths: list[Path], left: dict[bytes, int], sign: int) -> None:
    """Add the first records that only one side has to a list of examples."""
    wanted = {digest: count * sign for digest, count in left.items() if count * sign > 0}
    for digest, text in _records(paths) if wanted else ():
        if len(found) >= EXAMPLES:
            return
        if wanted.get(digest, 0) > 0:
            wanted[digest] -= 1
            found.append(text)


def _files(endpoint: ShadowEndpoint | None) -> list[Path]:
    folder = None if endpoint is None else Path(endpoint.output)
    return sorted(folder.iterdir()) if folder is not None and folder.is_dir() else []


def _records(paths: list[Path]) -> Iterator[tuple[bytes, str]]:
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield hashlib.blake2b(line.encode(), digest_size=16).digest(), json.loads(line)
