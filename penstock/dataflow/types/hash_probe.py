"""Check by its hash whether a value can change. `Row`s need another check.

The loops of operators check each record that they emit. The cheapest check is `record in probe`
with an empty dict, which raises `TypeError` for a value without a hash. Lists, dicts and other
values that can change have no hash. Tuples that contain them have none, too.

A `Row` can change and has a hash, as in PyFlink. So from the first row of a process on, `in` raises
`TypeError` for all values. The loops then look at the types of the records, which takes longer.
"""

from __future__ import annotations


class HashProbe(dict[object, object]):
    """An empty dict, in which no value is ever found: `value in probe` is False or raises."""


def distrust_hashes() -> None:
    """Make `in` raise `TypeError` for all values and all probes of this process."""
    HashProbe.__contains__ = None  # type: ignore[assignment, method-assign]
