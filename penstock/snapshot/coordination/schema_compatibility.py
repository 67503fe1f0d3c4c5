"""Decide whether a program's record classes can read the values of a snapshot.

The rules are the same as for Flink's POJO types. Fields are matched by name. A new field gets its
default value, and a renamed one is found by its aliases. The values of a removed field are dropped
only if the user allows it. The fields of a named tuple must not change, because named tuples that
are keys are compared by position.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches

from penstock.snapshot.coordination.compatibility import Difference, Verdict
from penstock.snapshot.metadata.annotations import includes
from penstock.snapshot.metadata.schema import (
    FieldSchema,
    RecordKind,
    RecordSchema,
    former_names,
)


def compare_schemas(
    before: Iterable[RecordSchema], after: Iterable[RecordSchema]
) -> list[Difference]:
    """Return the differences of record classes that affect how values can be read.

    A class that the program no longer has is not reported here. Reading a value of such a class
    raises an error.

    Arguments:
        before: the schemas of the snapshot's record classes.
        after: the schemas of the program's record classes.
    """
    current = {schema.name: schema for schema in after}
    found: dict[Difference, None] = {}
    for old in before:
        new = current.get(old.name)
        if new is not None and new.fields is not None and old.fields is not None:
            found |= dict.fromkeys(_compare(old, old.fields, new, new.fields))
    return list(found)


def _compare(
    old: RecordSchema,
    former: Sequence[FieldSchema],
    new: RecordSchema,
    fields: Sequence[FieldSchema],
) -> Iterator[Difference]:
    was, now = ({one.name: one for one in each} for each in (former, fields))
    for verdict, reason in _reasons(old.kind, new.kind, was, now):
        yield Difference(old.name, new.kind.value, verdict, reason)


def _reasons(
    old_kind: RecordKind,
    new_kind: RecordKind,
    was: dict[str, FieldSchema],
    now: dict[str, FieldSchema],
) -> Iterator[tuple[Verdict, str]]:
    if old_kind is not new_kind:
        reason = f"it was a {old_kind.value}: make it one again, or give it another name"
        yield Verdict.REFUSED, reason
        return
    if new_kind is RecordKind.NAMED_TUPLE and list(was) != list(now):
        reason = (
            f"its fields were ({', '.join(was)}) and are ({', '.join(now)}). Named tuples are "
            f"compared by position, also as keys: put the fields back, or give the class another "
            f"name"
        )
        yield Verdict.REFUSED, reason
        return
    what = "member" if new_kind is RecordKind.ENUM else "field"
    before = former_names(was, now.values())
    gone = [name for name in was if name not in before.values()]
    added = [name for name in now if name not in before]
    for name in gone:
        if new_kind is RecordKind.ENUM:
            reason = f"member {name!r} is gone, and the snapshot may hold it: put it back"
            yield Verdict.REFUSED, reason
        else:
            reason = f"field {name!r} is gone, and its values would be lost"
            if added:
                near = get_close_matches(name, added, n=1, cutoff=0)[0]
                reason += f"; if it is {near!r} now, give that its former name, or an alias:"
                reason += f" {near}: ... = field(metadata={{'aliases': [{name!r}]}})"
            yield Verdict.DROPPED, reason
    for name in added:
        if new_kind is RecordKind.DATACLASS and not now[name].has_default:
            reason = f"field {name!r} is new, and former records lack it: give it a default"
            yield Verdict.REFUSED, reason
    for name, former in before.items():
        old, new = was[former].type, now[name].type
        if not includes(new or "Any", old or "Any"):
            reason = (
                f"{what} {name!r} was {old} and is {new}: change it back, or use another name for "
                f"it"
            )
            yield Verdict.REFUSED, reason
