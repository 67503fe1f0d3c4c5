"""Keyed state against a plain dict, whatever order things happen in.

Slices are two entries long, so that everything is interleaved with everything, and budgets hold
about ten entries. Every handle that was ever completed must restore to the dict of its moment.
"""

import copy
import itertools
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from penstock.dataflow.graph.keys import canonical
from penstock.snapshot.metadata.handles import KeyedHandle
from penstock.snapshot.state import MISSING, KeyedBackend, StateSnapshot
from penstock.snapshot.state.rocksdb.database import ROCKSDB
from penstock.snapshot.state.settings import StateSettings
from tests.sizes import sized
from tests.snapshot.state.backends import TIGHT_SQLITE, PlainCodec

GROUPS = 8
#: The keys of the last state are composite.
STATES = ("first", "second", "pairs")

keys = st.one_of(st.integers(0, 20), st.sampled_from(["a", "b", b"a", True]))
numbers = st.integers(-1000, 1000)
values = st.one_of(
    numbers,
    st.text(max_size=5),
    st.lists(numbers, max_size=3),
    st.dictionaries(st.text(max_size=2), numbers, max_size=2),
)
states = st.sampled_from(STATES[:2])
parts = st.one_of(st.integers(0, 5), st.sampled_from(["p", None]))
few_keys = st.sampled_from([0, 7, "a", b"a"])


class Driver:
    """One generator of slow work, with the step it waits for."""

    def __init__(self, work):
        self.work = work
        self.done = False
        self.result = None
        self._resume(None)

    def advance(self):
        """Does the step it waits for and drives it to the next."""
        self._resume(None if self.step is None else self.step())

    def finish(self):
        while not self.done:
            self.advance()
        return self.result

    def _resume(self, result):
        try:
            self.step = self.work.send(result)
        except StopIteration as stop:
            self.done, self.result = True, stop.value


class KeyedStateMachine(RuleBasedStateMachine):
    inline_threshold = 0
    budgets = (4_000, 100_000)
    garbage_factor = 0

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="penstock-"))
        self.chance = random.Random()
        self.counter: Iterator[int] = itertools.count(1)
        self.budget = self.budgets[0]
        self.completed: list[tuple[KeyedHandle, dict[str, dict[Any, Any]]]] = []

    def make(self, groups: range = range(GROUPS)) -> KeyedBackend:
        # Every look at the clock ends a slice.
        clock = itertools.count()
        # Whatever one engine has written, the other one restores.
        return KeyedBackend(
            engine=self.chance.choice((ROCKSDB, TIGHT_SQLITE)),
            folder=self.root / f"work-{next(self.counter)}",
            codec=PlainCodec(),
            canonical=canonical,
            max_parallelism=GROUPS,
            groups=groups,
            inline_threshold=self.inline_threshold,
            memory_budget=self.budget,
            clock=lambda: next(clock),
            settings=StateSettings(
                max_slice_entries=32,
                sample_entries=2,
                chunk_entries=2,
                block_entries=3,
                garbage_factor=self.garbage_factor,
                slack_entries=0,
                eager_flush_entries=0,
            ),
        )

    def begin(self, model, backend: KeyedBackend) -> None:
        self.model = model
        self.backend = backend
        self.pending: list[tuple[StateSnapshot, dict[str, dict[Any, Any]]]] = []
        self.active: Driver | None = None
        self.writing = False
        self.ahead: Driver | None = None
        # The number of a snapshot.
        self.announced: int | None = None

    def teardown(self) -> None:
        self.settle()
        self.check_scan()
        self.backend.close()
        for handle, expected in self.completed[-3:]:
            self.check_handle(handle, expected)
        shutil.rmtree(self.root)

    def settle(self) -> None:
        while self.active is not None or self.pending:
            self.drive_captures()

    # --- records ---

    @initialize(budget=st.integers(0, 1), seed=st.integers(0, 2**16))
    def start(self, budget, seed):
        self.chance.seed(seed)
        self.budget = self.budgets[budget % len(self.budgets)]
        backend = self.make()
        backend.composite_table("pairs")
        self.begin({state: {} for state in STATES}, backend)

    @rule(state=states, key=keys, value=values)
    def put(self, state, key, value):
        self.backend.table(state).put(key, value)
        self.model[state][key] = copy.deepcopy(value)

    @rule(state=states, entries=st.dictionaries(keys, values, min_size=5))
    def put_many(self, state, entries):
        dirty = self.backend.table(state).dirty
        for key, value in entries.items():
            dirty[key] = value
            self.model[state][key] = copy.deepcopy(value)

    @rule(state=states, key=keys)
    def delete(self, state, key):
        self.backend.table(state).delete(key)
        self.model[state].pop(key, None)

    @rule(state=states, key=keys)
    def get(self, state, key):
        assert self.backend.table(state).get(key) == self.model[state].get(key, MISSING)

    @rule(state=states, key=keys, extra=numbers)
    def change_in_place(self, state, key, extra):
        value = self.backend.table(state).get(key)
        ours = self.model[state].get(key, MISSING)
        assert value == ours
        for each in (value, ours):
            if isinstance(each, list):
                each.append(extra)
            elif isinstance(each, dict):
                each["extra"] = extra

    @rule(state=states, some=st.lists(keys, min_size=4, max_size=12))
    def read_ahead(self, state, some):
        table = self.backend.table(state)
        table.read_ahead(some)
        for key in some:
            assert table.get(key) == self.model[state].get(key, MISSING)

    # --- entries of composite keys ---

    @rule(key=few_keys, part=parts, value=values)
    def put_entry(self, key, part, value):
        self.backend.composite_table("pairs").put((key, part), value)
        self.model["pairs"][key, part] = copy.deepcopy(value)

    @rule(key=few_keys, part=parts)
    def delete_entry(self, key, part):
        self.backend.composite_table("pairs").delete((key, part))
        self.model["pairs"].pop((key, part), None)

    @rule(key=few_keys)
    def clear_entries(self, key):
        self.backend.composite_table("pairs").clear(key)
        for entry in [entry for entry in self.model["pairs"] if entry[0] == key]:
            del self.model["pairs"][entry]

    @rule(key=few_keys, extra=numbers)
    def list_entries(self, key, extra):
        table = self.backend.composite_table("pairs")
        ours = {entry: value for entry, value in self.model["pairs"].items() if entry[0] == key}
        assert table.has_entries(key) == bool(ours)
        found = list(table.entries_of(key))
        assert len(found) == len(ours)
        assert dict(found) == ours
        for entry, value in found:
            if isinstance(value, list):
                value.append(extra)
                ours[entry].append(extra)

    # --- snapshots ---

    @precondition(lambda self: len(self.pending) < 4)
    @rule()
    def capture(self):
        number, self.announced = self.announced or next(self.counter), None
        self.pending.append((self.backend.capture(number), copy.deepcopy(self.model)))

    @precondition(lambda self: self.pending)
    @rule(data=st.data())
    def abort(self, data):
        data.draw(st.sampled_from([capture for capture, _ in self.pending])).abort()

    @precondition(lambda self: self.pending or self.active)
    @rule(steps=st.integers(1, 6))
    def advance(self, steps):
        for _ in range(steps):
            if self.active is not None or self.pending:
                self.drive_captures(1)

    @precondition(lambda self: self.pending or self.active)
    @rule()
    def drive_captures(self, steps=1000):
        if self.active is None:
            capture, _ = self.pending[0]
            self.active = Driver(capture.write(self.root / str(capture.number)))
            self.writing = True
        while steps and not self.active.done:
            self.active.advance()
            steps -= 1
        if self.active.done:
            if self.writing:
                capture, expected = self.pending.pop(0)
                assert (self.active.result is None) == capture.aborted
                if self.active.result is not None:
                    handle, size = self.active.result
                    assert size.total == len(handle.inline or b"") + sum(
                        file.size for file in handle.files
                    )
                    self.completed.append((handle, expected))
            self.active = None
            self.writing = False

    @precondition(lambda self: self.writing)
    @rule()
    def give_up_writing(self):
        if self.active.step is None:
            self.active.work.close()
            self.active = None
            self.writing = False

    # --- idle time and memory ---

    @precondition(lambda self: self.active is None)
    @rule(steps=st.integers(1, 4), give_up=st.booleans())
    def flush_eagerly(self, steps, give_up):
        if self.ahead is None:
            self.ahead = Driver(self.backend.flush_eagerly())
        for _ in range(steps):
            if not self.ahead.done:
                self.ahead.advance()
        if give_up and not self.ahead.done:
            self.ahead.work.close()
        if give_up or self.ahead.done:
            self.ahead = None

    @rule(seconds=st.sampled_from([0.0, 1.0]))
    def prepare(self, seconds):
        self.announced = self.announced or next(self.counter)
        self.backend.announce_snapshot(self.announced, seconds, self.root / str(self.announced))

    @precondition(lambda self: self.announced)
    @rule()
    def another_snapshot_comes_first(self):
        self.announced = None

    @precondition(lambda self: self.active is None and self.ahead is None and not self.pending)
    @rule(at_once=st.booleans())
    def prepare_checkpoint(self, at_once):
        self.active = Driver(self.backend.prepare_checkpoint())
        if at_once:
            self.active.finish()
        if self.active.done:
            assert not self.backend.wants_preparation
            self.active = None

    @precondition(lambda self: self.active is None and not self.pending)
    @rule(steps=st.integers(0, 10))
    def evict(self, steps):
        self.active = Driver(self.backend.evict())
        while steps and not self.active.done:
            self.active.advance()
            steps -= 1
        if self.active.done:
            assert not self.backend.memory.is_exceeded()
            self.active = None

    @rule()
    def evict_two(self):
        if self.backend.storage.cold.is_readable and self.backend.memory.is_exceeded():
            max(self.backend.tables, key=lambda table: len(table.clean)).evict(2)

    # --- looking ---

    @rule()
    def check_scan(self):
        for state in STATES:
            entries = list(self.backend.scan(state))
            assert len(entries) == len(dict(entries))
            assert dict(entries) == self.model[state]

    @invariant()
    def nothing_is_hidden_while_nothing_is_cold(self):
        if not self.backend.storage.cold.is_readable:
            for table in self.backend.tables:
                assert not table.has_cold

    @precondition(lambda self: self.completed)
    @rule(data=st.data(), go_on=st.booleans())
    def restore(self, data, go_on):
        handle, expected = data.draw(st.sampled_from(self.completed))
        if not go_on:
            self.check_handle(handle, expected)
            return
        self.settle()
        self.backend.close()
        backend = self.make()
        Driver(backend.restore([(self.root, handle)])).finish()
        self.begin(copy.deepcopy(expected), backend)

    @precondition(lambda self: self.completed)
    @rule(data=st.data(), cut=st.integers(1, GROUPS - 1))
    def rescale(self, data, cut):
        handle, expected = data.draw(st.sampled_from(self.completed))
        parts = []
        for groups in (range(cut), range(cut, GROUPS)):
            backend = self.make(groups)
            Driver(backend.restore([(self.root, handle)])).finish()
            work = backend.capture(next(self.counter))
            parts.append(Driver(work.write(self.root / str(work.number))).finish()[0])
            backend.close()
        backend = self.make()
        Driver(backend.restore([(self.root, part) for part in parts])).finish()
        assert {state: dict(backend.scan(state)) for state in STATES} == expected
        backend.close()

    def check_handle(self, handle, expected):
        backend = self.make()
        Driver(backend.restore([(self.root, handle)])).finish()
        assert {state: dict(backend.scan(state)) for state in STATES} == expected
        for state in filter(expected.get, STATES):
            table = backend.tables.named(state)
            assert all(table.get(key) == value for key, value in expected[state].items())
        backend.close()


class SmallStateMachine(KeyedStateMachine):
    """At the default threshold; little ever outgrows it, except under a tiny budget."""

    inline_threshold = 64 * 1024


class GrowingStateMachine(KeyedStateMachine):
    """With a threshold that is often outgrown."""

    inline_threshold = 60


class AmpleStateMachine(KeyedStateMachine):
    """With memory for everything, so that the database holds blocks to the end."""

    budgets = (100_000_000,)
    garbage_factor = 1


_settings = settings(
    max_examples=sized(40, 400),
    stateful_step_count=40,
    deadline=None,
    # Shrinking takes minutes here, with a database beneath; the blob replays the failure.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
TestAlwaysInDatabase = KeyedStateMachine.TestCase
TestAlwaysInDatabase.settings = _settings
TestSmall = SmallStateMachine.TestCase
TestSmall.settings = _settings
TestGrowing = GrowingStateMachine.TestCase
TestGrowing.settings = _settings
TestAmple = AmpleStateMachine.TestCase
TestAmple.settings = _settings
