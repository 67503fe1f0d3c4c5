"""Keyed state in blocks, in any order of changes, captures, and steps of their writing.

On a database in memory, which is quick enough for thousands of histories. There are two states:
values of the first are lists that are changed in place, those of the second are as `reduce` has
them, so that the table is dense while most of it changes.
"""

import copy
import itertools
import random
from dataclasses import replace
from pathlib import Path

from penstock.dataflow.graph.keys import canonical
from penstock.snapshot.metadata.handles import SnapshotBytes
from penstock.snapshot.state import MISSING, KeyedBackend, StateSnapshot
from penstock.snapshot.state.cold.blocks import newest_entries, read_block
from penstock.snapshot.state.dense_layout import DenseLayout
from penstock.snapshot.state.rocksdb.database import ROCKSDB
from penstock.snapshot.state.settings import StateSettings
from tests.sizes import sized
from tests.snapshot.state.backends import GROUPS, PlainCodec, drive

SEEDS = sized(1000, 100_000)


class Batch(dict):
    def __delitem__(self, key):
        self[key] = None


class MemoryDatabase:
    """What of a database blocks need; a checkpoint is a copy of what is in it."""

    has_early = False

    def __init__(self):
        self.content = {}
        self.checkpoints = {}
        self.unflushed_bytes = self.unlisted_bytes = 0

    @classmethod
    def create(cls, folder, shared):
        del folder, shared
        return cls()

    @staticmethod
    def new_batch():
        return Batch()

    def write(self, batch):
        for key, value in batch.items():
            if value is None:
                del self.content[key]
            else:
                self.content[key] = value

    def checkpoint(self, store, target):
        self.checkpoints[int(target.name)] = dict(store.content)
        return (), SnapshotBytes(0, 0)

    def close(self):
        pass


class Walk:
    """One random history."""

    def __init__(self, seed: int, root: Path) -> None:
        self.chance = random.Random(seed)
        self.root = root
        clock = itertools.count()
        self.backend = KeyedBackend(
            folder=root,
            codec=PlainCodec(),
            canonical=canonical,
            max_parallelism=GROUPS,
            groups=range(GROUPS),
            inline_threshold=0,
            clock=lambda: next(clock),
            settings=StateSettings(
                garbage_factor=0,
                slack_entries=0,
                dense_sample=2,
                block_entries=3,
                sample_entries=2,
                eager_flush_entries=0,
            ),
            engine=replace(ROCKSDB, create=MemoryDatabase.create),
        )
        self.backend.storage.files = self.files = MemoryDatabase()
        self.lists, self.plain = self.backend.table("lists"), self.backend.table("plain")
        self.plain.declare_immutable()
        self.models: list[dict] = [{}, {}]
        count = self.chance.choice([3, 8, 20])
        self.keys = self.chance.choice([range(count), [f"k{i}" for i in range(count)]])
        self.expected: dict[int, list[dict]] = {}
        self.pending: list[StateSnapshot] = []
        self.work, self.step = None, None
        self.overlapping = self.begun = self.ended = 0

    def run(self) -> None:
        # How often a record changes the second state, and how often all of it; whether captures
        # are mostly written before the next.
        busy, whole, brisk = (self.chance.choice([0.1, 0.9]) for _ in range(3))
        for number in range(1, self.chance.choice([6, 12])):
            if self.chance.random() < brisk:
                self.write(1000)
            for _ in range(self.chance.randrange(12)):
                self.change_lists(number)
                if self.chance.random() < busy:
                    self.change_plain(number, whole)
                self.write(self.chance.randrange(3))
                if self.pending and self.chance.random() < 0.02:
                    given_up = self.chance.choice(self.pending)
                    given_up.abort()
                    self.expected.pop(given_up.number, None)
                if not self.pending and self.chance.random() < 0.2:
                    if self.chance.random() < 0.5:
                        self.backend.announce_snapshot(number, 0.0, self.root / str(number))
                    drive(self.backend.flush_eagerly())
            self.capture(number)
        while self.pending:
            self.write(1000)
        self.check()

    def change_lists(self, number: int) -> None:
        model, key, kind = self.models[0], self.chance.choice(self.keys), self.chance.randrange(4)
        if kind == 0:
            self.lists.delete(key)
            model.pop(key, None)
        elif kind == 1 or key not in model:
            self.lists.put(key, [number])
            model[key] = [number]
        else:
            self.lists.get(key).append(number)
            model[key].append(number)

    def change_plain(self, number: int, whole: float) -> None:
        model, table = self.models[1], self.plain
        all_keys = self.chance.random() < whole
        for key in self.keys if all_keys else [self.chance.choice(self.keys)]:
            before = table.get(key)
            assert before == model.get(key, MISSING)
            # The very object of before may come again after another.
            model[key] = self.chance.choice([number, before, 0]) if key in model else 0
            table.dirty[key] = model[key]
        if self.chance.random() < 0.01:
            # As `reduce` says it of a record that has no hash.
            model[number], table.dirty[number] = [number], [number]
            table.allow_mutable()

    def capture(self, number: int) -> None:
        self.overlapping += bool(self.pending)
        before = self.is_dense()
        self.pending.append(self.backend.capture(number))
        self.ended += before and not self.is_dense()
        self.expected[number] = copy.deepcopy(self.models)

    def write(self, steps: int) -> None:
        """Makes steps of writing the oldest captures."""
        for _ in range(steps):
            if not self.pending:
                return
            if self.work is None:
                self.work = self.pending[0].write(self.root / str(self.pending[0].number))
                self.step = None
            before = self.is_dense()
            try:
                self.step = self.work.send(None if self.step is None else self.step())
                self.begun += self.is_dense() and not before
            except StopIteration:
                self.pending.pop(0)
                self.work = None
                continue
            if self.step is None and self.chance.random() < 0.05:
                self.work.close()  # given up half-way, to be begun again
                self.work = None

    def is_dense(self) -> bool:
        return isinstance(self.backend.tables.layouts[self.plain.table_id], DenseLayout)

    def check(self) -> None:
        for number, content in self.files.checkpoints.items():
            blocks = [read_block(PlainCodec(), *r) for r in sorted(content.items())]
            found: list[dict] = [{}, {}]
            for state, key, value in newest_entries(blocks):
                found[state][key] = value
            assert found == self.expected.get(number, found), number
        # One that was written may be given up after that.
        assert self.files.checkpoints.keys() >= self.expected.keys()


def test_every_checkpoint_is_the_state_at_its_barrier(tmp_path):
    overlapping = begun = ended = 0
    for seed in range(SEEDS):
        walk = Walk(seed, tmp_path)
        try:
            walk.run()
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        overlapping += walk.overlapping
        begun += walk.begun
        ended += walk.ended
    # They were worth their while.
    assert overlapping > SEEDS and begun > SEEDS / 4 and ended > SEEDS / 10, (
        overlapping,
        begun,
        ended,
    )
