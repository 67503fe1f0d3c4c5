"""All kinds of state against plain dicts: random use, snapshots, aborts, evictions and restores.

A run uses a few keys on a backend in small slices. Every snapshot that is completed must restore to
the content of its moment, by one subtask or by two. The expected content is computed by a second,
naive implementation, which also knows when values expire.
"""

import copy
import random

import pytest

from penstock import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from penstock.snapshot.state.settings import StateSettings
from tests.runtime.operators.state.states import CODEC, Clock, context_of
from tests.runtime.operators.state.test_states import Mean
from tests.sizes import sized
from tests.snapshot.state.backends import GROUPS, drive

KEYS = ["a", 1, None, ("t", 2.5), b"b"]
TTL = 50


class Real:
    """The states of an operator."""

    def __init__(self, backend, clock):
        self.backend, self.context = backend, context_of(backend, clock)
        c = self.context
        self.value = c.get_state(ValueStateDescriptor("value"))
        self.list = c.get_list_state(ListStateDescriptor("list"))
        self.map = c.get_map_state(MapStateDescriptor("map"))
        self.sum = c.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b))
        self.mean = c.get_aggregating_state(AggregatingStateDescriptor("mean", Mean()))
        self.brief = c.get_state(self.expiring(ValueStateDescriptor("brief")))
        self.visits = c.get_list_state(self.expiring(ListStateDescriptor("visits")))
        self.pages = c.get_map_state(self.expiring(MapStateDescriptor("pages")))

    @staticmethod
    def expiring(descriptor):
        builder = StateTtlConfig.new_builder(TTL)
        if descriptor.name == "pages":
            builder.update_ttl_on_read_and_write()
        descriptor.enable_time_to_live(builder.build())
        return descriptor


class Naive:
    """What the states should contain for one key; expiring values come with their last use."""

    def __init__(self):
        self.value, self.list, self.map, self.sum, self.mean = None, [], {}, None, None
        self.brief, self.visits, self.pages = None, [], {}

    def expire(self, now):
        if self.brief is not None and self.brief[1] + TTL <= now:
            self.brief = None
        self.visits = [(value, used) for value, used in self.visits if used + TTL > now]
        self.pages = {k: (v, used) for k, (v, used) in self.pages.items() if used + TTL > now}

    def use_pages(self, now):
        self.pages = {k: (v, now) for k, (v, _) in self.pages.items()}


class Run:
    def __init__(self, make, rng):
        self.make, self.rng, self.clock = make, rng, Clock()
        self.options = {
            "inline_threshold": rng.choice([0, 800, 1 << 20]),
            "memory_budget": rng.choice([6_000, 40_000, 1 << 30]),
            "settings": StateSettings(
                max_slice_entries=32,
                sample_entries=2,
                chunk_entries=3,
                block_entries=5,
                garbage_factor=rng.choice([0, 1]),
                slack_entries=0,
                eager_flush_entries=0,
            ),
        }
        self.number, self.pending, self.done, self.rows = 0, [], [], False
        self.begin(self.new_backend(range(GROUPS)), {key: Naive() for key in KEYS})

    def new_backend(self, groups):
        # All state is written by the codec of jobs, as it keeps the types of all values.
        return self.make(groups, codec=CODEC, **self.options)

    def begin(self, backend, model):
        self.real, self.model = Real(backend, self.clock), model

    def step(self):
        rng = self.rng
        action = rng.choices(
            [
                self.use,
                self.read,
                self.pass_time,
                self.capture,
                self.write,
                self.relieve,
                self.restore,
            ],
            [30, 12, 4, 3, 5, 3, 1],
        )[0]
        action()

    def use(self):
        rng, clock = self.rng, self.clock
        key = self.real.context.key = rng.choice(KEYS)
        real, naive = self.real, self.model[key]
        naive.expire(clock.now)
        new = rng.choice([rng.randrange(9), "text", [rng.randrange(9)], ("t", None)])
        part = rng.choice([rng.randrange(8), "p", ("q", 1)])
        action = rng.randrange(17)
        if action == 0:
            real.value.update(new)
            naive.value = copy.deepcopy(new)
        elif action == 1:
            real.value.clear()
            naive.value = None
        elif action == 2:
            real.list.add(new)
            naive.list.append(copy.deepcopy(new))
        elif action == 3:
            real.list.update([new, 1])
            naive.list = [copy.deepcopy(new), 1]
        elif action == 4:
            real.list.clear()
            naive.list = []
        elif action in (5, 6):
            real.map.put(part, new)
            naive.map[part] = copy.deepcopy(new)
        elif action == 7:
            real.map.remove(part)
            naive.map.pop(part, None)
        elif action == 8 and rng.random() < 0.3:
            real.map.clear()
            naive.map = {}
        elif action == 9:
            real.sum.add(3)
            naive.sum = (naive.sum or 0) + 3
        elif action == 10:
            real.mean.add(4)
            total, count = naive.mean or (0, 0)
            naive.mean = total + 4, count + 1
        elif action == 11:
            (real.sum.clear(), real.mean.clear())
            naive.sum = naive.mean = None
        elif action == 12:
            real.brief.update(new)
            naive.brief = copy.deepcopy(new), clock.now
        elif action == 13:
            real.visits.add_all([new, 2])
            naive.visits += [(copy.deepcopy(new), clock.now), (2, clock.now)]
        elif action == 14:
            real.pages.put(part, new)
            naive.pages[part] = copy.deepcopy(new), clock.now
        elif action == 15:
            real.pages.remove(part)
            naive.pages.pop(part, None)
        elif action == 16:
            self.change_in_place(real, naive)

    def change_in_place(self, real, naive):
        extra = self.rng.randrange(9)
        pairs = [(real.value.value(), naive.value), *zip(real.list, naive.list, strict=True)]
        pairs += [(value, naive.map[part]) for part, value in real.map.items()]
        for mine, expected in pairs:
            assert mine == expected
            if isinstance(mine, list):
                mine.append(extra)
                expected.append(extra)

    def read(self):
        key = self.real.context.key = self.rng.choice(KEYS)
        self.compare(self.real, self.model[key])

    def compare(self, real, naive):
        now = self.clock.now
        naive.expire(now)
        assert real.value.value() == naive.value
        assert real.list.get() == naive.list
        assert dict(real.map.items()) == naive.map
        assert real.map.is_empty() == (not naive.map)
        assert set(real.map.keys()) == naive.map.keys()
        assert real.sum.get() == naive.sum
        assert real.mean.get() == (naive.mean and naive.mean[0] / naive.mean[1])
        assert real.brief.value() == (naive.brief and naive.brief[0])
        assert real.visits.get() == [value for value, _ in naive.visits]
        assert dict(real.pages.items()) == {k: v for k, (v, _) in naive.pages.items()}
        naive.use_pages(now)

    def pass_time(self):
        self.clock.now += self.rng.randrange(1, 20)

    def capture(self):
        if len(self.pending) < 3:
            self.number += 1
            taken = self.real.backend.capture(self.number)
            self.pending.append((taken, copy.deepcopy(self.model)))

    def write(self):
        if not self.pending:
            return
        snapshot, model = self.pending.pop(0)
        if self.rng.random() < 0.25:
            snapshot.abort()
        folder = self.make.root / f"{snapshot.number}-{id(self)}"
        done = drive(snapshot.write(folder))
        if done is not None:
            self.done.append((done[0], model))

    def relieve(self):
        backend = self.real.backend
        if not self.pending:
            drive(backend.flush_eagerly() if self.rng.random() < 0.5 else backend.evict())
        if backend.storage.cold.is_readable:
            self.rows = True
            for table in backend.tables:
                table.evict(self.rng.randrange(5))

    def restore(self):
        if not self.done:
            return
        handle, model = self.rng.choice(self.done[-3:])
        cut = self.rng.randrange(GROUPS + 1)
        if cut in (0, GROUPS):
            backend = self.new_backend(range(GROUPS))
            drive(backend.restore([(self.make.root, handle)]))
        else:
            parts = []
            for groups in (range(cut), range(cut, GROUPS)):
                part = self.new_backend(groups)
                drive(part.restore([(self.make.root, handle)]))
                Real(part, self.clock)
                self.number += 1
                target = self.make.root / f"part-{self.number}-{id(self)}"
                parts.append(drive(part.capture(self.number).write(target))[0])
            backend = self.new_backend(range(GROUPS))
            drive(backend.restore([(self.make.root, part) for part in parts]))
        self.pending.clear()
        self.begin(backend, copy.deepcopy(model))

    def finish(self):
        while self.pending:
            self.write()
        for key in KEYS:
            self.real.context.key = key
            self.compare(self.real, self.model[key])


@pytest.mark.parametrize("seed", range(sized(12, 300)))
def test_states_are_what_plain_dicts_would_be(make, seed):
    run = Run(make, random.Random(seed))
    for _ in range(400):
        run.step()
    run.finish()
