"""Every source, read as the engine reads it, stopped anywhere and resumed: nothing is lost or
doubled. `Run` is a tiny engine: an enumerator, readers, snapshots that pass through msgpack."""

import csv
import gzip
import io
import json
import random
import tempfile
from collections import Counter
from pathlib import Path

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.connectors import (
    CollectionSource,
    CsvRows,
    FileSource,
    GeneratorSource,
    IterableSource,
    JsonLines,
    SequenceSource,
    TextLines,
)
from penstock.dataflow.source import ReaderContext, Split

quick = settings(max_examples=60, deadline=None)


class Run:
    """Reads a source with some readers, in random steps."""

    def __init__(self, source, parallelism, rng, state=None):
        self.rng = rng
        self.enumerator = source.create_enumerator(parallelism)
        self.readers = [
            source.create_reader(ReaderContext("uid", i, parallelism)) for i in range(parallelism)
        ]
        # Per reader: the splits it still has to read, with positions; the first one is open.
        self.splits = [[] for _ in self.readers]
        self.done = [False] * parallelism
        self.emitted = []
        if state is None:
            self.enumerator.start()
            return
        left, splits = msgpack.unpackb(state, strict_map_key=False)
        self.enumerator.restore(left)
        for index, (id, payload, position) in enumerate(splits):
            self.splits[index % parallelism].append((Split(id, payload), position))
        for reader, splits in zip(self.readers, self.splits, strict=True):
            if splits:
                reader.open(*splits[0])

    def step(self):
        """One read of one reader; False if all have ended."""
        live = [i for i, done in enumerate(self.done) if not done]
        if not live:
            return False
        i = self.rng.choice(live)
        reader, splits = self.readers[i], self.splits[i]
        if not splits:
            split = self.enumerator.next_split(i)
            if split is None:
                self.done[i] = self.enumerator.exhausted
                return True
            splits.append((split, None))
            reader.open(split, None)
        size = self.rng.choice([1, 2, 3, 7, 100])
        read = reader.read(size)
        assert len(read.records) <= size
        self.emitted += read.records
        splits[0] = (splits[0][0], read.position)
        if read.finished:
            del splits[0]
            if splits:
                reader.open(*splits[0])
        return True

    def snapshot(self):
        splits = [
            [split.id, split.payload, position] for own in self.splits for split, position in own
        ]
        return msgpack.packb([self.enumerator.snapshot(), splits])

    def close(self):
        for reader in self.readers:
            reader.close()
        self.enumerator.close()

    def finish(self):
        while self.step():
            pass
        self.close()
        return self.emitted


def read_all(source, parallelism=1, seed=0):
    return Run(source, parallelism, random.Random(seed)).finish()


def read_with_crashes(make_source, seed, rescale=False):
    """Snapshot at random, go on, crash, resume from the snapshot; several times."""
    rng = random.Random(seed)
    parallelism = rng.randint(1, 3)
    run = Run(make_source(), parallelism, rng)
    output = []
    for _ in range(rng.randint(1, 3)):
        for _ in range(rng.randint(0, 12)):
            run.step()
        state, kept = run.snapshot(), list(run.emitted)
        for _ in range(rng.randint(0, 6)):
            run.step()
        run.close()
        output += kept
        if rescale:
            parallelism = rng.randint(1, 4)
        run = Run(make_source(), parallelism, rng, state)
    return output + run.finish()


def count(records):
    return Counter(map(repr, records))


seeds = st.integers(0, 2**32)


@quick
@given(seeds, st.lists(st.integers() | st.text()), st.booleans())
def test_a_collection_resumes_without_loss_or_doubles(seed, records, rescale):
    output = read_with_crashes(lambda: CollectionSource(records), seed, rescale)
    assert count(output) == count(records)


@quick
@given(seeds, st.integers(-5, 5), st.integers(0, 300), st.booleans())
def test_a_sequence_resumes_without_loss_or_doubles(seed, start, length, rescale):
    output = read_with_crashes(lambda: SequenceSource(start, start + length), seed, rescale)
    assert sorted(output) == list(range(start, start + length + 1))


@quick
@given(seeds, st.integers(0, 300), st.booleans())
def test_a_generator_resumes_without_loss_or_doubles(seed, length, rescale):
    output = read_with_crashes(lambda: GeneratorSource(str, length), seed, rescale)
    assert sorted(map(int, output)) == list(range(length))


@pytest.mark.parametrize("kind", ["sequence", "iterator in a thread", "iterator in the task"])
@settings(max_examples=25, deadline=None)
@given(seed=seeds, length=st.integers(0, 200), rescale=st.booleans())
def test_an_iterable_resumes_without_loss_or_doubles(kind, seed, length, rescale):
    def share(subtask, parallelism):
        mine = range(subtask, length, parallelism)
        return mine if kind == "sequence" else (number for number in mine)

    blocking = kind != "iterator in the task"
    output = read_with_crashes(lambda: IterableSource(share, blocking=blocking), seed, rescale)
    assert sorted(output) == list(range(length))


# What tempts a reader to cut in the wrong place: separators of str.splitlines, lone carriage
# returns, characters of several bytes, empty lines.
awkward = st.text(st.sampled_from('ab,"\r\x0b\x1c\x85\u2028é😀 '), max_size=8)


def write(folder, name, data):
    path = Path(folder, name)
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)


def lines_of(text):
    """What the documentation says a text holds, in the plainest way."""
    pieces = text.split("\n")
    last = pieces.pop()
    return [line.removesuffix("\r") for line in pieces] + (
        [last.removesuffix("\r")] if last else []
    )


@pytest.mark.parametrize("suffix", ["", ".gz"])
@quick
@given(
    seed=seeds,
    texts=st.lists(
        st.tuples(st.lists(awkward), st.sampled_from(["\n", "\r\n"]), st.booleans()), max_size=3
    ),
    bom=st.booleans(),
    split_bytes=st.sampled_from([1, 5, 16, 1000]),
    rescale=st.booleans(),
)
def test_text_lines_resume_without_loss_or_doubles(suffix, seed, texts, bom, split_bytes, rescale):
    with tempfile.TemporaryDirectory() as folder:
        expected = []
        for number, (lines, end, is_ended) in enumerate(texts):
            text = end.join(lines) + (end if is_ended else "")
            data = text.encode("utf-8-sig" if bom else "utf-8")
            write(folder, f"{number}.txt{suffix}", data)
            expected += lines_of(text)
        output = read_with_crashes(
            lambda: FileSource(folder, split_bytes=split_bytes), seed, rescale
        )
        assert count(output) == count(expected)
        assert read_all(FileSource(folder, split_bytes=split_bytes), 1, seed) == expected


@pytest.mark.parametrize("suffix", ["", ".gz"])
@quick
@given(
    seed=seeds,
    records=st.lists(st.dictionaries(awkward, st.integers() | awkward, max_size=3)),
    split_bytes=st.sampled_from([1, 5, 16, 1000]),
)
def test_json_lines_resume_without_loss_or_doubles(suffix, seed, records, split_bytes):
    with tempfile.TemporaryDirectory() as folder:
        text = "\n\n".join(json.dumps(record, ensure_ascii=False) for record in records)
        write(folder, f"a.jsonl{suffix}", text.encode())
        output = read_with_crashes(
            lambda: FileSource(folder, JsonLines(), split_bytes=split_bytes), seed, True
        )
        assert count(output) == count(records)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@quick
@given(
    seed=seeds,
    rows=st.lists(st.tuples(awkward, st.text(st.sampled_from('x\n\r",'), max_size=6))),
    blank_every=st.integers(1, 5),
    tuples=st.booleans(),
)
def test_csv_rows_resume_without_loss_or_doubles(suffix, seed, rows, blank_every, tuples):
    with tempfile.TemporaryDirectory() as folder:
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(("first", "second"))
        for number, row in enumerate(rows):
            writer.writerow(row)
            if number % blank_every == 0:
                writer.writerow(())
        write(folder, f"a.csv{suffix}", text.getvalue().encode())
        expected = rows if tuples else [{"first": a, "second": b} for a, b in rows]
        output = read_with_crashes(lambda: FileSource(folder, CsvRows(tuples=tuples)), seed, True)
        assert count(output) == count(expected)


def test_with_one_reader_every_source_keeps_the_order(tmp_path):
    numbers = list(range(1000))
    (tmp_path / "a.txt").write_text("".join(f"{n}\n" for n in numbers))
    assert read_all(CollectionSource(numbers)) == numbers
    assert read_all(SequenceSource(0, 999)) == numbers
    assert read_all(GeneratorSource(lambda i: i, 1000)) == numbers
    assert read_all(IterableSource(lambda: iter(numbers))) == numbers
    assert list(map(int, read_all(FileSource(tmp_path, TextLines(), split_bytes=100)))) == numbers
