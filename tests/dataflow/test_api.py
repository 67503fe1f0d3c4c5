"""The DataStream API, run for real: several streams of one program in few jobs.

Each program writes what its streams hold into folders of its own and is executed once; the tests
look at the outcome. So every method is seen to work between processes, and the suite stays quick.
"""

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock import (
    DataStream,
    FileSink,
    FilterFunction,
    FlatMapFunction,
    GraphError,
    IterableSource,
    JobError,
    JsonLines,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
    ReduceFunction,
    SequenceSource,
    SinkFunction,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from penstock.dataflow.program import RunOptions, run_options
from penstock.runtime.client.job_report import JobMonitor

N = 300


class Sale(NamedTuple):
    shop: str
    amount: int


@dataclass(frozen=True)
class Visit:
    shop: str
    seconds: int


class Tag(MapFunction):
    """Adds the subtask to each record, and shows that open and close are called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def open(self, runtime_context):
        self.context = runtime_context
        assert runtime_context.get_task_name() == "tag"
        assert runtime_context.get_number_of_parallel_subtasks() == 3
        assert runtime_context.get_max_number_of_parallel_subtasks() == 128
        assert runtime_context.get_attempt_number() == 0
        (self.folder / f"opened-{runtime_context.get_index_of_this_subtask()}").touch()

    def map(self, value):
        return [self.context.get_index_of_this_subtask(), value]

    def close(self):
        (self.folder / f"closed-{self.context.get_index_of_this_subtask()}").touch()


class Twice(FlatMapFunction):
    def flat_map(self, value):
        yield value
        yield value


class Even(FilterFunction):
    def filter(self, value):
        return value % 2 == 0


class Last(KeySelector):
    def get_key(self, value):
        return value % 10


class Add(ReduceFunction):
    def reduce(self, value1, value2):
        return value1 + value2


class Halves(ProcessFunction):
    def process_element(self, value, ctx):
        if value % 2 == 0:
            yield value // 2


class ToThird(Partitioner):
    def partition(self, key, num_partitions):
        assert num_partitions == 3
        return key


class Distinct(KeyedProcessFunction):
    """Lets the first two records of a key through, then forgets the key."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.INT()))

    def process_element(self, value, ctx):
        count = (self.seen.value() or 0) + 1
        self.seen.update(count)
        if count == 3:
            self.seen.clear()
        else:
            yield [ctx.get_current_key(), count]


class Remember(SinkFunction):
    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, runtime_context):
        index = runtime_context.get_index_of_this_subtask()
        self.file = self.path.with_name(f"{self.path.name}-{index}").open("a")

    def invoke(self, value):
        self.file.write(f"{value}\n")

    def close(self):
        self.file.close()


class _Outcome:
    """Collects what each stream of a program holds; `outcome.of(name)` after it has run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, stream: DataStream) -> None:
        stream.sink_to(FileSink(self.folder / name, JsonLines())).name(name).uid(name)

    def of(self, name: str) -> list[Any]:
        records = []
        for path in sorted((self.folder / name).glob("part-*")):
            records += [json.loads(line) for line in path.read_text().splitlines()]
        return records

    def counter(self, name: str) -> Counter[Any]:
        return Counter(map(_hashable, self.of(name)))


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


@pytest.fixture(scope="module")
def stateless(tmp_path_factory) -> _Outcome:
    outcome = _Outcome(tmp_path_factory.mktemp("stateless"))
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    numbers = env.from_sequence(1, N)
    outcome.add("map", numbers.map(lambda n: n * n))
    outcome.add("map with a class", numbers.map(str, output_type=Types.STRING()))
    outcome.add("flat_map", numbers.flat_map(lambda n: [n] * (n % 3)))
    outcome.add("rich flat_map", numbers.flat_map(Twice()))
    outcome.add("filter", numbers.filter(lambda n: n % 7 == 0))
    outcome.add("rich filter", numbers.filter(Even()))
    outcome.add("process", numbers.process(Halves()))
    outcome.add("union", numbers.union(env.from_collection([-1, -2]), env.from_generator(abs, 5)))
    spread: dict[str, DataStream] = {
        "rebalance": numbers.rebalance(),
        # Each subtask makes half of these. The splits of `numbers` go to whoever asks first, which
        # may be the same subtask each time, and that one sends to some of the three only.
        "rescale": env.from_generator(lambda i: i + 1, N).rescale(),
        "shuffle": numbers.shuffle(),
        "broadcast": numbers.broadcast(),
        "global": numbers.global_(),
        "custom": numbers.partition_custom(ToThird(), lambda n: n % 3),
        "key_by": numbers.key_by(Last()),
    }
    for name, stream in spread.items():
        outcome.add(
            name, stream.map(Tag(outcome.folder)).name("tag").set_parallelism(3).disable_chaining()
        )
    outcome.add("forward", numbers.forward().map(str).start_new_chain())
    numbers.add_sink(Remember(outcome.folder / "function"))
    outcome.add("from_source", env.from_source(SequenceSource(1, 3), source_name="three"))
    iterable = env.from_source(IterableSource(lambda subtask, parallelism: [subtask, parallelism]))
    outcome.add("iterable", iterable)
    result = env.execute("stateless")
    assert result.job_name == "stateless"
    assert result.get_net_runtime() > 0
    by_name = {operator["name"]: operator for operator in result.operators}
    assert by_name["map"]["records_in"] == N
    assert not result.restarts
    assert not result.stopped
    return outcome


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("map", [n * n for n in range(1, N + 1)]),
        ("map with a class", [str(n) for n in range(1, N + 1)]),
        ("flat_map", [n for n in range(1, N + 1) for _ in range(n % 3)]),
        ("rich flat_map", [n for n in range(1, N + 1) for _ in range(2)]),
        ("filter", range(7, N + 1, 7)),
        ("rich filter", range(2, N + 1, 2)),
        ("process", range(1, N // 2 + 1)),
        ("union", [*range(1, N + 1), -1, -2, 0, 1, 2, 3, 4]),
        ("forward", [str(n) for n in range(1, N + 1)]),
        ("from_source", [1, 2, 3]),
        ("iterable", [0, 2, 1, 2]),
    ],
)
def test_each_record_comes_once_through(stateless: _Outcome, name: str, expected):
    assert stateless.counter(name) == Counter(expected)


@pytest.mark.parametrize("name", ["rebalance", "rescale", "shuffle", "global", "custom", "key_by"])
def test_a_partitioning_gives_every_record_to_one_subtask(stateless: _Outcome, name: str):
    assert Counter(n for _, n in stateless.of(name)) == Counter(range(1, N + 1))


def test_rebalance_deals_evenly(stateless: _Outcome):
    shares = Counter(subtask for subtask, _ in stateless.of("rebalance"))
    assert max(shares.values()) - min(shares.values()) <= 2


def test_rescale_and_shuffle_use_all_subtasks(stateless: _Outcome):
    assert {subtask for subtask, _ in stateless.of("rescale")} == {0, 1, 2}
    assert {subtask for subtask, _ in stateless.of("shuffle")} == {0, 1, 2}


def test_broadcast_gives_every_record_to_every_subtask(stateless: _Outcome):
    every = [(subtask, n) for subtask in range(3) for n in range(1, N + 1)]
    assert stateless.counter("broadcast") == Counter(every)


def test_global_gives_all_to_the_first_subtask(stateless: _Outcome):
    assert {subtask for subtask, _ in stateless.of("global")} == {0}


def test_a_custom_partitioner_decides(stateless: _Outcome):
    assert all(subtask == n % 3 for subtask, n in stateless.of("custom"))


def test_equal_keys_go_to_one_subtask(stateless: _Outcome):
    pairs = {(n % 10, subtask) for subtask, n in stateless.of("key_by")}
    assert len(pairs) == 10


def test_rich_functions_are_opened_and_closed_in_each_subtask(stateless: _Outcome):
    for what in ("opened", "closed"):
        assert len(list(stateless.folder.glob(f"{what}-*"))) == 3


def test_a_sink_function_gets_every_record(stateless: _Outcome):
    texts = [path.read_text() for path in stateless.folder.glob("function-*")]
    assert Counter(map(int, "".join(texts).split())) == Counter(range(1, N + 1))


@pytest.fixture(scope="module", params=[0, 64 * 1024], ids=["rocksdb", "inline"])
def keyed(tmp_path_factory, request) -> _Outcome:
    outcome = _Outcome(tmp_path_factory.mktemp("keyed"))
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    env.enable_checkpointing(50)
    env.get_checkpoint_config().set_inline_threshold(request.param)
    numbers = env.from_generator(lambda i: i, N, 1500)
    outcome.add("reduce", numbers.key_by(lambda n: n % 10).reduce(Add()))
    outcome.add("count", numbers.key_by(lambda n: (n % 2, str(n % 3))).count())
    outcome.add("process", numbers.key_by(lambda n: n % 50).process(Distinct()))
    sales = env.from_collection([Sale("a", 3), Sale("b", 5), Sale("a", 1), Sale("a", 9)])
    by_shop = sales.key_by(lambda sale: sale.shop)
    outcome.add("sum", by_shop.sum("amount"))
    outcome.add("min", by_shop.min(1))
    outcome.add("max", by_shop.max("amount"))
    visits = env.from_collection([Visit("a", 3), Visit("a", 1), Visit("a", 9), Visit("b", 2)])
    shortest = visits.key_by(lambda visit: visit.shop).min_by("seconds")
    outcome.add("min_by", shortest.map(lambda visit: [visit.shop, visit.seconds]))
    longest = visits.key_by(lambda visit: visit.shop).max_by("seconds")
    outcome.add("max_by", longest.map(lambda visit: [type(visit).__name__, visit.seconds]))
    outcome.add("plain", env.from_collection([4, 2, 6]).key_by(lambda _: 0).min(None))
    rekeyed = numbers.key_by(lambda n: n % 10).key_by(lambda n: n % 4).count()
    outcome.add("rekeyed", rekeyed.filter(lambda pair: pair[1] == N // 4))
    result = env.execute()
    assert result.snapshots
    return outcome


def test_reduce_emits_the_running_combination(keyed: _Outcome):
    expected = Counter[int]()
    for key in range(10):
        total = 0
        for n in range(key, N, 10):
            total += n
            expected[total] += 1
    # Two sources feed each key, so what is summed up when may differ; how often may not.
    assert len(keyed.of("reduce")) == expected.total()
    finals = {sum(range(key, N, 10)) for key in range(10)}
    assert finals <= set(keyed.of("reduce"))


def test_count_emits_key_and_running_number(keyed: _Outcome):
    sizes = Counter((n % 2, str(n % 3)) for n in range(N))
    every = [(key, i + 1) for key, size in sizes.items() for i in range(size)]
    assert keyed.counter("count") == Counter(every)


def test_a_keyed_process_function_has_state_per_key(keyed: _Outcome):
    # Of the six records of each key, the third and sixth are dropped and the state is cleared.
    every = [(key, count) for key in range(50) for count in (1, 2, 1, 2)]
    assert keyed.counter("process") == Counter(every)


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("sum", lambda out: out[("a", 13)] == 1 and out[("b", 5)] == 1 and out.total() == 4),
        ("min", lambda out: out[("a", 1)] >= 1 and out[("b", 5)] == 1),
        ("max", lambda out: out[("a", 9)] >= 1 and out[("b", 5)] == 1),
        ("min_by", lambda out: out[("a", 1)] >= 1 and out[("b", 2)] == 1),
        ("max_by", lambda out: out[("Visit", 9)] >= 1 and out[("Visit", 2)] == 1),
        ("plain", lambda out: out[2] >= 1),
        ("rekeyed", lambda out: out == Counter([(key, N // 4) for key in range(4)])),
    ],
)
def test_rolling_aggregations_work_on_fields(keyed: _Outcome, name: str, check: Callable):
    assert check(keyed.counter(name)), keyed.of(name)


def test_text_files_are_read_and_results_come_back_to_the_program(tmp_path: Path, capfd):
    rng = random.Random(4)
    words = [rng.choice("abcdefgh") * rng.randint(1, 3) for _ in range(2000)]
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("\n".join(words[number::4]) + "\n")
    factor = 3

    def tripled(word: str) -> tuple[str, int]:
        return word, factor

    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    lines = env.read_text_file(tmp_path)
    lines.filter(lambda word: word == "aaa").print("seen")
    with lines.map(tripled).execute_and_collect("collected") as records:
        assert Counter(records) == Counter((word, 3) for word in words)
    assert "aaa" not in capfd.readouterr().out
    env.execute()
    assert capfd.readouterr().out.count("aaa") == words.count("aaa")


def test_a_report_has_operators_snapshots_and_restarts(tmp_path: Path):
    env = StreamExecutionEnvironment.get_execution_environment().enable_checkpointing(50)
    env.from_generator(lambda i: i, 200, 1000).map(str).uid("texts").print()
    report = tmp_path / "report.json"
    with run_options(RunOptions(report=str(report), parallelism=1)):
        env.execute("reported")
    told = json.loads(report.read_text())
    assert told["job"] == "reported"
    assert told["status"] == "finished"
    assert {"uid": "texts", "records_in": 200}.items() <= {
        key: value for op in told["operators"] if op["uid"] == "texts" for key, value in op.items()
    }.items()
    assert told["snapshots"][0].keys() >= {"number", "duration_ms", "bytes_total"}
    assert told["restarts"] == []
    assert told["wall_seconds"] > 0


def following(report: Path) -> JobMonitor:
    """Of a job that has failed."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([1]).print()
    monitor = JobMonitor(env._program("failing"), RunOptions(report=str(report)), 0.0)
    monitor.handle({"event": "failed", "family": "JobError", "message": "a bad record"})
    return monitor


def test_a_report_is_there_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    written = []
    write_text = Path.write_text

    def note(path: Path, text: str) -> int:
        written.append(path)
        return write_text(path, text)

    monkeypatch.setattr(Path, "write_text", note)
    report, link = tmp_path / "report.json", tmp_path / "link"
    report.touch()
    link.symlink_to(report)
    for given in (report, link, tmp_path / "new.json"):
        with pytest.raises(JobError, match="a bad record"):
            following(given).result("ended")
        assert json.loads(given.read_text())["status"] == "failed"
    assert link.is_symlink()
    assert not set(written) & {report, link, tmp_path / "new.json"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "new.json", "report.json"]


def test_a_report_that_cannot_be_written_does_not_hide_why_the_job_failed(tmp_path: Path):
    with pytest.raises(JobError, match="a bad record") as caught:
        following(tmp_path / "nowhere" / "report.json").result("ended")
    assert "the report cannot be written" in str(caught.value.__context__)


# ---- loops and the end of input


class Farewell(ProcessFunction):
    """Tells at the end, once in each subtask, how many records it has seen."""

    def open(self, runtime_context):
        self.subtask, self.seen = runtime_context.get_index_of_this_subtask(), 0

    def process_element(self, value, ctx):
        self.seen += 1

    def end_input(self, ctx):
        return [[self.subtask, self.seen]]


class Visits(KeyedProcessFunction):
    """Counts the visits of each key, and tells them at the end."""

    def open(self, runtime_context):
        self.visits = runtime_context.get_state(ValueStateDescriptor("visits"))

    def process_element(self, value, ctx):
        self.visits.update((self.visits.value() or 0) + 1)
        yield ("again", value)

    def end_input(self, ctx):
        yield ("visits", ctx.get_current_key(), self.visits.value())


class Rounds(KeyedProcessFunction):
    """At the end of input a key starts another record round the loop, twice."""

    def open(self, runtime_context):
        self.rounds = runtime_context.get_state(ValueStateDescriptor("rounds"))
        self.seen = runtime_context.get_state(ValueStateDescriptor("seen"))

    def process_element(self, value, ctx):
        self.seen.update((self.seen.value() or 0) + 1)

    def end_input(self, ctx):
        rounds = (self.rounds.value() or 0) + 1
        self.rounds.update(rounds)
        if rounds <= 2:
            yield (ctx.get_current_key(), rounds, self.seen.value())


def collatz(number: int) -> int:
    return number // 2 if number % 2 == 0 else 3 * number + 1


def collatz_steps(number: int) -> int:
    steps = 0
    while number != 1:
        number, steps = collatz(number), steps + 1
    return steps


@pytest.fixture(scope="module", params=[None, 50], ids=["no snapshots", "snapshots"])
def looping(tmp_path_factory, request) -> _Outcome:
    outcome = _Outcome(tmp_path_factory.mktemp("looping"))
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    if request.param is not None:
        env.enable_checkpointing(request.param)
    numbers = env.from_sequence(1, N)

    iteration = numbers.map(lambda n: (n, n, 0)).rebalance().iterate()
    stepped = iteration.map(lambda v: v if v[1] == 1 else (v[0], collatz(v[1]), v[2] + 1))
    outcome.add("collatz", stepped.filter(lambda v: v[1] == 1).map(lambda v: [v[0], v[2]]))
    iteration.close_with(stepped.filter(lambda v: v[1] != 1))

    # Two loops that share a keyed function, with a key that changes on the way.
    halves, thirds = env.create_feedback("halves"), env.create_feedback("thirds")
    visited = numbers.union(halves, thirds).key_by(lambda n: n).process(Visits())
    again = visited.filter(lambda v: v[0] == "again").map(lambda v: v[1])
    halves.close_with(again.filter(lambda n: n % 2 == 0).map(lambda n: n // 2))
    thirds.close_with(again.filter(lambda n: n % 6 == 3).map(lambda n: n // 3))
    outcome.add("visits", visited.filter(lambda v: v[0] == "visits").map(lambda v: v[1:]))

    outcome.add("farewell", numbers.rebalance().process(Farewell()))
    # A chain of hooks behind a loop: each hears the end of the one before.
    outcome.add("behind", stepped.filter(lambda v: v[1] == 1).process(Farewell()))

    rounds = env.create_feedback("rounds")
    seeds = env.from_collection([("a", 0, 0), ("b", 0, 0), ("a", 0, 0)])
    told = seeds.union(rounds).key_by(lambda v: v[0]).process(Rounds())
    rounds.close_with(told)
    outcome.add("rounds", told)
    # The same, with what would be routed by column if it did not stay inside the loop.
    again = env.create_feedback("again by column")
    told = seeds.union(again).key_by(lambda v: v[0]).process(Rounds())
    again.close_with(told.map(lambda v: (v[0], v[1], v[2])))
    outcome.add("rounds by column", told)
    env.execute("looping")
    return outcome


def test_an_iteration_goes_round_until_nothing_is_fed_back(looping: _Outcome):
    assert looping.counter("collatz") == Counter((n, collatz_steps(n)) for n in range(1, N + 1))


def test_feedback_streams_join_loops_and_end_input_is_called_for_each_key(looping: _Outcome):
    expected: Counter[int] = Counter()
    left = list(range(1, N + 1))
    while left:
        number = left.pop()
        expected[number] += 1
        if number % 2 == 0:
            left.append(number // 2)
        elif number % 6 == 3:
            left.append(number // 3)
    assert looping.counter("visits") == Counter(expected.items())


def test_end_input_is_called_once_in_each_subtask(looping: _Outcome):
    for name in ("farewell", "behind"):
        told = dict(looping.of(name))
        assert told.keys() == {0, 1} and sum(told.values()) == N, name


def test_hooks_of_a_loop_run_again_until_they_emit_nothing_into_it(looping: _Outcome):
    # What a round emits has been processed when the next one begins.
    rounds = [("a", 1, 2), ("a", 2, 3), ("b", 1, 1), ("b", 2, 2)]
    assert looping.counter("rounds") == looping.counter("rounds by column") == Counter(rounds)


def test_a_collection_is_read_in_its_order_by_one_subtask():
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(4)
    numbers = list(range(500))
    records = env.from_collection(numbers)
    assert list(records.execute_and_collect(in_process=True)) == numbers
    assert list(records.map(abs).set_parallelism(1).execute_and_collect()) == numbers
    with pytest.raises(GraphError, match="cannot run in parallel: a collection is read in its"):
        env.from_collection([1]).set_parallelism(2)
