"""Jobs that write Delta and Iceberg tables and are killed while they publish."""

from collections import Counter

from penstock import RestartStrategies, StoreError, StreamExecutionEnvironment
from tests.processes.harness import run
from tests.spark.dying_sink import DyingSink

RECORDS = 2_000
WORDS = 97
PARTS = 3
COLUMNS = [("word", "string"), ("n", "long"), ("part", "long")]


class LakeSink(DyingSink):
    """Dies at the point "logged", after a transaction in the table's log, too."""

    def create_committer(self):
        committer = super().create_committer()
        log = committer._log
        log.__class__ = _dying_log(type(log))
        log.point = committer._point
        return committer


def _dying_log(base):
    class Dying(base):
        def _append(self, *arguments):
            super()._append(*arguments)
            self.point("logged")

        def _overwrite(self, *arguments):
            super()._overwrite(*arguments)
            self.point("logged")

        def _upsert(self, *arguments):
            super()._upsert(*arguments)
            self.point("logged")

    return Dying


def job(folder, sink):
    """A running count per word, to a table."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(100)
    env.get_checkpoint_config().set_checkpoint_storage_dir(folder / "job")
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(40, 10))
    numbers = env.from_generator(lambda i: i, RECORDS, 4_000).uid("numbers")
    counts = numbers.map(lambda i, w=WORDS: (f"word{i * 7919 % w}", 1)).key_by(lambda p: p[0])
    counts = counts.reduce(lambda a, b: (a[0], a[1] + b[1])).uid("count")
    rows = counts.map(lambda pair, n=PARTS: (*pair, len(pair[0]) % n))
    rows.sink_to(sink).uid("table")
    return env


def run_and_die(folder, make_sink, points):
    """Run the job to its end, though its JobManager dies at each point; returns how often."""
    deaths = folder / "deaths"
    deaths.mkdir()
    for point in points:
        (deaths / point).touch()
    for died in range(20):
        sink = make_sink()
        sink.deaths = deaths
        try:
            run(job(folder, sink), resume="newest" if died else None)
            return died
        except StoreError as error:
            assert "killed by signal 9" in str(error), error
    raise AssertionError("not finished after 20 runs")


def lost_and_doubled(rows):
    """How many rows are missing, and how many are too many."""
    words = Counter(f"word{i * 7919 % WORDS}" for i in range(RECORDS))
    wanted = Counter(
        (word, n, len(word) % PARTS) for word, last in words.items() for n in range(1, last + 1)
    )
    seen = Counter(rows)
    return sum((wanted - seen).values()), sum((seen - wanted).values())
