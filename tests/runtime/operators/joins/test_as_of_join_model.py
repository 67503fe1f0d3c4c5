"""As-of joins beside a list of all versions, with random input, restores and rescaling."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import OutputTag
from penstock.dataflow.operators import specs
from penstock.dataflow.streams.join_arguments import as_of_join_operation
from penstock.dataflow.time import MAX_WATERMARK, NO_TIMESTAMP
from tests.runtime.operators.joins.harness import Joins, disturb
from tests.sizes import sized

LATE = OutputTag("late")


class NaiveJoin:
    """Keeps all versions that have come."""

    def __init__(self, keeps_unmatched: bool) -> None:
        self.keeps_unmatched = keeps_unmatched
        self.versions: list[tuple[Any, int]] = []
        self.waiting: list[tuple[Any, int]] = []

    def advance(self, watermark: int) -> Counter[Any]:
        """Return the results of the records up to a watermark, with their times."""
        found: Counter[Any] = Counter()
        for record, time in self.waiting:
            if time <= watermark:
                valid = [
                    (version_time, place, version)
                    for place, (version, version_time) in enumerate(self.versions)
                    if version[0] == record[0] and version_time <= time
                ]
                if valid or self.keeps_unmatched:
                    found[(record, max(valid)[2] if valid else None), time] += 1
        self.waiting = [each for each in self.waiting if each[1] > watermark]
        return found


@pytest.mark.parametrize("how", ["inner", "left"])
def test_each_record_meets_the_version_that_is_valid_at_its_time(tmp_path: Path, how: str) -> None:
    operation = as_of_join_operation(how, None, LATE)
    for seed in range(sized(3, 100)):
        rng = random.Random(seed)
        kind = specs.as_of_join(operation)
        joins = Joins(kind, operation, tmp_path / str(seed), ("late",))
        naive, late = NaiveJoin(how == "left"), Counter[Any]()
        for number in range(150):
            disturb(joins, rng)
            record, step = (rng.choice("abc"), number), rng.random()
            time = max(joins.watermark, -20) + rng.randrange(-8, 20)
            if step < 0.4:
                if time < joins.watermark:
                    late["late", record, time] += 1
                else:
                    naive.waiting.append((record, time))
                assert not joins.add(0, (record, time)), seed
            elif step < 0.8:
                naive.versions.append((record, time))
                assert not joins.add(1, (record, time)), seed
            else:
                watermark = max(joins.watermark, -20) + rng.randrange(9)
                assert joins.advance(watermark) == naive.advance(watermark), seed
        assert joins.side == late, seed
        assert joins.advance(MAX_WATERMARK) == naive.advance(MAX_WATERMARK), seed
        keys = {version[0] for version, _ in naive.versions}
        assert joins.size() == len(keys), "the newest version of each key is left"
        joins.close()


def test_old_versions_are_removed_without_any_record(tmp_path: Path) -> None:
    operation = as_of_join_operation("inner", None, None)
    joins = Joins(specs.as_of_join(operation), operation, tmp_path)
    rng = random.Random(5)
    times = rng.sample(range(1000), 200)
    joins.add(1, *((("a", time), time) for time in times))
    for watermark in range(0, 1100, 100):
        joins.advance(watermark)
        (entry,) = joins.subtasks[0].context.backend.scan("as-of-join-versions")
        kept = sorted(times)[max(0, sum(time <= watermark for time in times) - 1) :]
        assert entry[1][0] == kept
    joins.close()


@pytest.mark.parametrize("side", [0, 1])
def test_a_record_without_a_timestamp_is_refused(tmp_path: Path, side: int) -> None:
    operation = as_of_join_operation("inner", None, None)
    joins = Joins(specs.as_of_join(operation), operation, tmp_path)
    with pytest.raises(Exception, match=r"without a timestamp came to the (first|second) stream"):
        joins.add(side, (("a", 1), NO_TIMESTAMP))
    joins.close()
