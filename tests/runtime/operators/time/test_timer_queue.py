"""Timer queues: order, deduplication, deletion, snapshots, and the horizon."""

import random
from collections import Counter
from itertools import pairwise

import pytest

from penstock.dataflow.graph.key_groups import key_group
from penstock.dataflow.graph.keys import canonical
from penstock.runtime.operators.time.timer_queue import TimerQueue
from penstock.snapshot.metadata.state_kind import StateKind
from penstock.snapshot.state import MISSING
from penstock.snapshot.state.settings import StateSettings
from tests.snapshot.state.backends import GROUPS, Maker, drive


@pytest.fixture
def make(tmp_path):
    maker = Maker(tmp_path)
    yield maker
    for backend in maker.made:
        backend.close()


def _queue(backend, max_in_memory=1_000_000):
    table = backend.composite_table("timers", StateKind.TIMER)
    return TimerQueue(table, lambda: backend.scan("timers"), max_in_memory)


def _fired(queue, time):
    return [(when, key, namespace) for key, when, namespace in queue.advance(time)]


def test_timers_fire_in_the_order_of_their_times(make):
    queue = _queue(make())
    for key, time in ("a", 30), ("b", 10), ("c", 20), ("d", 40), ("e", 10):
        queue.register(key, None, time)
    assert queue.next_time() == 10
    assert _fired(queue, 30) == [
        (10, "b", None),
        (10, "e", None),
        (20, "c", None),
        (30, "a", None),
    ]
    assert queue.next_time() == 40
    assert _fired(queue, 39) == []
    assert _fired(queue, 40) == [(40, "d", None)]
    assert queue.next_time() is None


def test_a_timer_fires_once_however_often_it_is_registered(make):
    queue = _queue(make())
    for _ in range(3):
        queue.register("a", None, 5)
    queue.register("a", "other namespace", 5)
    assert _fired(queue, 9) == [(5, "a", None), (5, "a", "other namespace")]
    assert _fired(queue, 9) == []


def test_a_deleted_timer_does_not_fire(make):
    queue = _queue(make())
    for key in "abc":
        queue.register(key, None, 5)
    queue.delete("b", None, 5)
    queue.delete("a", None, 6)
    queue.delete("z", None, 5)
    assert _fired(queue, 5) == [(5, "a", None), (5, "c", None)]
    queue.register("a", None, 7)
    queue.delete("a", None, 7)
    assert queue.next_time() is None


def test_timers_of_a_firing_up_to_the_current_time_fire_in_the_same_advance(make):
    queue = _queue(make())
    for key in "ab":
        queue.register(key, None, 10)
    fired = []
    for key, time, _ in queue.advance(20):
        fired.append((time, key))
        if fired == [(10, "a")]:
            queue.register("now", None, 10)
            queue.register("before", None, 5)
            queue.register("after", None, 15)
            queue.register("later", None, 21)
            queue.register("a", None, 10)
    assert fired == [(10, "a"), (5, "before"), (10, "b"), (10, "now"), (10, "a"), (15, "after")]
    assert queue.next_time() == 21


def test_a_firing_can_delete_the_timers_behind_it(make):
    queue = _queue(make())
    for key in "abcd":
        queue.register(key, None, 10)
    queue.register("late", None, 12)
    fired = []
    for key, time, _ in queue.advance(20):
        fired.append((time, key))
        queue.delete("b", None, 10)
        queue.delete("late", None, 12)
        if key != "d":
            queue.delete("d", None, 10)
        if key == "c":
            queue.register("d", None, 10)
    assert fired == [(10, "a"), (10, "c"), (10, "d")]


@pytest.mark.parametrize("depth", [1, 3])
def test_timers_that_register_earlier_ones_take_linear_work(make, depth, monkeypatch):
    listed = 0

    def count(self, rows):
        nonlocal listed
        listed += len(rows)
        return iter(tuple(rows))

    monkeypatch.setattr(TimerQueue, "_listed_now", count)
    queue, many = _queue(make()), 3000
    for number in range(many):
        queue.register(number, None, 100)
    fired = []
    for number, time, _ in queue.advance(100):
        fired.append((number, time))
        if time > 100 - depth:
            for namespace in ("x", "y"):
                queue.register(number, namespace, time - 1)
    # Each timer has fired two earlier ones before the next one of its time.
    levels = Counter(time for _, time in fired)
    assert levels == {100 - level: many * 2**level for level in range(depth + 1)}
    assert [number for number, time in fired if time == 100] == list(range(many))
    assert listed <= len(fired)
    assert queue.next_time() is None


def test_a_timer_of_a_time_that_fires_may_be_registered_and_deleted_between_earlier_ones(make):
    queue = _queue(make())
    for key in "abcd":
        queue.register(key, None, 10)
    fired = []
    for key, time, _ in queue.advance(20):
        fired.append((time, key))
        if fired == [(10, "a")]:
            queue.register("first", None, 5)
        elif (time, key) == (5, "first"):
            queue.delete("c", None, 10)
            queue.register("e", None, 10)
            queue.register("a", None, 10)
    assert fired == [(10, "a"), (5, "first"), (10, "b"), (10, "d"), (10, "e"), (10, "a")]
    assert queue.next_time() is None


def test_times_may_be_negative(make):
    queue = _queue(make())
    for time in 0, -5, 3, -(2**63):
        queue.register("a", None, time)
    assert [time for time, _, _ in _fired(queue, 2**63 - 1)] == [-(2**63), -5, 0, 3]


def test_rows_are_removed_without_a_trace_before_the_next_snapshot(make):
    backend = make()
    queue, table = _queue(backend), backend.composite_table("timers", StateKind.TIMER)
    for n in range(100):
        queue.register(n, None, n)
    assert len(_fired(queue, 99)) == 100
    assert not table.dirty
    queue.register("a", None, 500)
    make.snapshot(backend, 1)
    queue.delete("a", None, 500)
    assert table.get(("a", 500, None)) is MISSING
    queue.register("a", None, 500)
    queue.delete("a", None, 500)
    assert table.get(("a", 500, None)) is MISSING


def test_deleted_times_do_not_pile_up(make):
    queue = _queue(make())
    for time in range(20_000):
        queue.register("a", None, time + 1_000_000)
        queue.delete("a", None, time + 1_000_000)
    queue.register("a", None, 5)
    assert len(queue._times) < 5_000
    assert _fired(queue, 2_000_000) == [(5, "a", None)]


class Naive:
    """The timers as a set."""

    def __init__(self, rows=()):
        self.rows = set(rows)

    def register(self, key, namespace, time):
        self.rows.add((key, time, namespace))

    def delete(self, key, namespace, time):
        self.rows.discard((key, time, namespace))

    def advance(self, time):
        while due := [row for row in self.rows if row[1] <= time]:
            first = min(due, key=lambda row: row[1])
            self.rows.discard(first)
            yield first


SETTINGS = StateSettings(max_slice_entries=64, eager_flush_entries=40)


class Pair:
    """Queues of the engine, one for each subtask, beside one naive queue."""

    def __init__(self, make, rng, most, options):
        self.make, self.rng, self.most, self.options = make, rng, most, options
        self.naive, self.number, self.inside = Naive(), 0, Counter()
        self.start([make(**options)])

    def start(self, backends):
        self.backends = backends
        self.queues = [_queue(backend, self.most) for backend in backends]

    def queue_of(self, key):
        group = key_group(canonical(key), GROUPS)
        for backend, queue in zip(self.backends, self.queues, strict=True):
            if group in backend.groups:
                return queue
        raise AssertionError(group)

    def change(self, now):
        key, namespace = self.rng.randrange(12), self.rng.choice([None, None, (1, 2)])
        time = now + self.rng.randrange(-10, 60)
        register = self.rng.random() < 0.7
        for queue in self.queue_of(key), self.naive:
            (queue.register if register else queue.delete)(key, namespace, time)

    def advance(self, now):
        """Advance both, and let some firings of both change timers in the same way."""
        got, wanted = [], []
        for rows, queues in (got, self.queues), (wanted, [self.naive]):
            for queue in queues:
                for row in queue.advance(now):
                    rows.append(row)
                    key, time, namespace = row
                    if time % 7 == 0 and time < now + 40:
                        queue.register(key, namespace, time + 13)
                    if time % 5 == 0:
                        queue.delete(key, namespace, time + 3)
        assert sorted(got, key=repr) == sorted(wanted, key=repr)
        self.inside["fired"] += len(got)

    def snapshot_and_restore(self):
        """Take a snapshot, change something that a failure undoes, and restore it rescaled."""
        self.number += 1
        handles = [self.make.snapshot(backend, self.number) for backend in self.backends]
        saved = set(self.naive.rows)
        for _ in range(self.rng.randrange(30)):
            self.change(0)
        self.naive = Naive(saved)
        parallelism = self.rng.choice([1, 2, 3])
        starts = [GROUPS * n // parallelism for n in range(parallelism + 1)]
        self.start(
            [
                self.make.restored(*handles, groups=range(begin, end), **self.options)
                for begin, end in pairwise(starts)
            ]
        )
        for queue in self.queues:
            queue.restore()
        self.inside["restored"] += 1

    def work(self):
        """Take a snapshot, or evict entries, and continue."""
        self.number += 1
        for backend in self.backends:
            self.make.snapshot(backend, self.number)
            if self.rng.random() < 0.5:
                drive(backend.flush_eagerly())
            if backend.memory.is_exceeded():
                drive(backend.evict())
                self.inside["evicted"] += 1


@pytest.mark.parametrize("seed", range(8))
def test_queues_behave_like_a_naive_queue(make, seed):
    rng = random.Random(seed)
    most = rng.choice([3, 10, 50, 1000])
    options = {"inline_threshold": rng.choice([0, 1 << 20]), "settings": SETTINGS}
    if rng.random() < 0.5:
        options["memory_budget"] = 4096
    pair, now = Pair(make, rng, most, options), 0
    for _ in range(80):
        for _ in range(rng.randrange(12)):
            pair.change(now)
        action = rng.random()
        if action < 0.5:
            now += rng.randrange(0, 20)
            pair.advance(now)
        elif action < 0.6:
            pair.work()
        elif action < 0.65:
            pair.snapshot_and_restore()
    pair.advance(now + 1000)
    assert not pair.naive.rows
    assert all(queue.next_time() is None or queue.next_time() > 0 for queue in pair.queues)
    assert pair.inside["fired"] > 50
    assert pair.inside["restored"]
