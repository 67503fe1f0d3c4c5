"""A snapshot contains values that expire while it is written: repeated steps may read them."""

import random

from penstock.runtime.network.elements import Barrier
from penstock.testing.harness.harness_snapshot import HarnessFolder
from tests.runtime.task.repeated_tasks import LoneTask, program, repeat, steps_behind
from tests.runtime.task.test_repeated_steps import Expiring, key_of, ttl


def test_values_that_expire_while_a_snapshot_is_written_are_part_of_it() -> None:
    function = Expiring(ttl().cleanup_full_snapshot().build())
    code, chain = program(lambda stream: [stream.key_by(key_of).process(function)], 1)
    folder = HarnessFolder()
    first = LoneTask(code, chain, 1000, folder)
    channel, _ = first.inputs
    first.put(channel, [(("a", 3), 0)])
    first.run()
    for id in first.inputs:
        first.put(id, Barrier(5))
    first.put(channel, [(("a", 1), 0)])
    while first.task.step():
        pass  # the state is captured, but not written
    first.now = 2000
    first.put(channel, [(("b", 1), 0)])
    while first.task.step():
        pass
    first.run()
    expected = first.output(after=5)
    records = [record for found in expected.values() for record, _ in found]
    assert (("a", 1), (3, [(3, 3)], [3])) in records
    steps = steps_behind(first, chain, 5)
    again = LoneTask(code, chain, 3000, folder, first.snapshots.handles, 5, steps)
    repeat(random.Random(0), again, {channel: [(("a", 1), 0), (("b", 1), 0)]})
    assert again.output() == expected
