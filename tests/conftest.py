"""What holds for all tests: how Hypothesis draws, how processes start, who runs what.

A run of the tests must depend neither on chance nor on how fast the machine is, so examples follow
from the test alone, and nothing has a deadline. `make test-long` draws other examples each time.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from tests.sizes import CONNECTORS, LONG

settings.register_profile(
    "penstock",
    deadline=None,
    derandomize=not LONG,
    # With the examples of earlier runs two runs would differ.
    database=None,
    print_blob=True,
    # These two judge the machine and the version of Hypothesis.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("penstock")

#: Fixtures that start real servers.
pytest_plugins = ["penstock.testing.servers.fixtures"]

# The tests start hundreds of processes. Where the environment forbids bytecode to be written, each
# would compile this package again, for half of the time that it takes to start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell starts background commands with SIGINT ignored, and child processes inherit that. Tests
# that send SIGINT would then never end.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


#: Files that one process runs as a whole, by how their paths begin: those whose tests look at what
#: a fixture of the module has done, those that read all modules, and those that share a Spark
#: session, each with a JVM, or a browser.
WHOLE = (
    "tests/dataflow/test_api.py",
    "tests/docs/test_names.py",
    "tests/typing/",
    "tests/bench/test_paper.py",
    "tests/spark/test_cluster",
    "tests/spark/test_table_sink",
    "tests/spark/test_stream",
    "tests/spark/",
    "tests/rest/test_page.py",
)
#: What begins first: what takes longest, which would keep one process busy after all others have
#: ended; and collections of garbage, which take longer in a process that has run many tests.
FIRST = (
    "tests/spark/test_cluster",
    "tests/spark/test_table_sink",
    "tests/simulation/test_simulation.py::test_whatever_is_killed",
    "tests/runtime/taskmanager/test_gc_tuning.py",
    "tests/snapshot/protocols/test_interleavings.py::test_every_snapshot",
    "tests/typing/",
)
#: What `make test` leaves to `make test-deep`, since it takes more than half of the time of all
#: tests. Of each part, other tests stay in `make test`.
DEPTHS = (
    "tests/bench/test_bench.py",
    "tests/bench/test_nexmark.py",
    "tests/bench/test_paper.py",
    "tests/cli/test_remote.py",
    "tests/cli/test_simulate.py",
    "tests/connectors/kafka/test_kafka_direct",
    "tests/connectors/kafka/test_kafka_kills.py",
    "tests/connectors/kafka/test_kafka_sink.py",
    "tests/connectors/kafka/test_kafka_source.py",
    "tests/connectors/postgres/test_cdc",
    "tests/connectors/postgres/test_query",
    "tests/connectors/rabbitmq/",
    "tests/processes/test_cycles.py",
    "tests/processes/test_lost_slots.py",
    "tests/processes/test_modes.py",
    "tests/processes/test_snapshot_stores.py",
    "tests/processes/test_takeover.py",
    "tests/rest/test_page_jobs.py",
    "tests/runtime/dispatcher/test_outliving.py",
    "tests/runtime/dispatcher/test_refusals.py",
    "tests/runtime/dispatcher/test_shadow.py",
    "tests/runtime/dispatcher/test_tail.py",
    "tests/runtime/dispatcher/test_upgrade.py",
    "tests/simulation/test_deep_restarts.py",
    "tests/simulation/test_other_parallelism.py",
    "tests/simulation/test_random_jobs.py::test_a_wrong_engine_is_found_out[early broadcast]",
    "tests/simulation/test_random_jobs.py::test_random_jobs_lose_and_double_nothing[30]",
    "tests/simulation/test_random_jobs.py::test_random_jobs_lose_and_double_nothing[60]",
    "tests/simulation/test_simulation.py::test_whatever_is_killed",
    "tests/simulation/test_task_restarts.py",
    "tests/snapshot/protocols/test_cycle_interleavings.py",
    "tests/snapshot/protocols/test_cycle_random.py",
    "tests/snapshot/protocols/test_interleavings.py::test_every_snapshot",
    "tests/spark/test_cluster",
    "tests/spark/test_data_source.py",
    "tests/spark/test_session.py",
    "tests/spark/test_stream",
    "tests/spark/test_table_sink.py::test_a_crash_after_any_step",
    "tests/spark/test_table_sink.py::test_spark_names_partition_folders",
    "tests/spark/test_table_sink.py::test_spark_reads_each_type",
    "tests/spark/test_table_sink_",
    "tests/testing/simulation/test_simulate.py",
)
#: What `make test-pythons` leaves out: tests that start processes or Spark, and large simulations.
SLOW = (
    "tests/bench/",
    "tests/cli/",
    "tests/connectors/http/test_http_jobs.py",
    "tests/connectors/kafka/",
    "tests/connectors/mqtt/",
    "tests/connectors/rabbitmq/",
    "tests/connectors/test_resume.py",
    "tests/connectors/test_watched_jobs.py",
    "tests/dataflow/test_api.py",
    "tests/dataflow/test_executions.py",
    "tests/docs/",
    "tests/processes/",
    "tests/project/",
    "tests/runtime/dispatcher/",
    "tests/runtime/minicluster/",
    "tests/simulation/",
    "tests/snapshot/protocols/test_cycle_random.py",
    "tests/spark/",
    "tests/testing/",
    "tests/typing/",
)
#: Tests that need a package that `make test-pythons` does not install. They are left out where it
#: is missing; `make test` installs all of them.
NEEDED = {
    "bench": "numpy",
    "cli/test_job_report.py": "starlette",
    "cli/test_remote.py": "cryptography",  # and starlette
    "connectors/columns": "pyarrow",
    "connectors/formats": "fastavro",  # and the other packages of formats
    "connectors/http": "websockets",
    "connectors/kafka": "confluent_kafka",
    "connectors/mqtt": "paho",
    "connectors/nats/test_nats_access.py": "cryptography",
    "connectors/postgres": "psycopg",
    "connectors/rabbitmq": "rstream",
    "connectors/redis/test_redis_access.py": "cryptography",
    "dataflow/joins/test_table_joins.py": "pyarrow",
    "docs": "mkdocs",
    "processes/test_bad_messages.py": "msgspec",
    "processes/test_columns.py": "pyarrow",
    "processes/test_snapshot_stores.py": "obstore",  # and moto
    "processes/test_state_queries.py": "starlette",
    "project/test_deployment.py": "yaml",
    "rest": "starlette",
    "rest/test_telemetry.py": "opentelemetry",
    "rest/test_page.py": "selenium",
    "rest/test_page_jobs.py": "selenium",
    "runtime/network/test_column_router.py": "pyarrow",
    "runtime/operators/test_sink_writes.py": "pyarrow",
    "runtime/shadow/test_record_text.py": "numpy",
    "runtime/task/test_edge_watch.py": "pyarrow",
    "runtime/operators/columns": "pyarrow",
    "runtime/serialization/test_arrow_batch.py": "pyarrow",
    "runtime/serialization/test_structs.py": "msgspec",
    "runtime/task/test_column_slices.py": "pyarrow",
    "runtime/task/test_key_sampler.py": "pyarrow",
    "spark": "pyspark",
    "testing/connectors/test_kafka_fakes.py": "confluent_kafka",
    "testing/connectors/test_stream_fakes.py": "msgspec",
}
collect_ignore = [path for path, package in NEEDED.items() if find_spec(package) is None]
#: After which share of all others the rest of Spark begins: at once it would be too much for two
#: cores.
SPARK_AT = 0.3


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Bring the tests into the order in which they are handed out; leave out the longest."""
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker("slow")
        if item.nodeid.startswith(DEPTHS):
            item.add_marker("deep")
    left_out = {"connectors"} if not CONNECTORS else set()
    left_out |= {"long"} if not LONG else set()
    items[:] = [item for item in items if not any(map(item.get_closest_marker, left_out))]
    # Tests with processes mostly wait, others mostly compute: evenly mixed, they do both at a time.
    waiting = [item for item in items if item.nodeid.startswith("tests/processes/")]
    apart = ("tests/processes/", "tests/spark/")
    computing = [item for item in items if not item.nodeid.startswith(apart)]
    turns: dict[str, float] = {}
    for group in (waiting, computing):
        turns |= {item.nodeid: place / len(group) for place, item in enumerate(group)}

    def turn(item: pytest.Item) -> float:
        return -1.0 if item.nodeid.startswith(FIRST) else turns.get(item.nodeid, SPARK_AT)

    items.sort(key=turn)


def pytest_collection_finish() -> None:
    """Let the garbage collector leave alone what stays anyway: an eighth of the random loops."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, *gc.get_threshold()[1:])


class Scheduling(LoadScopeScheduling):
    """Hands out tests one by one, in order, and what belongs together to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return next((path for path in WHOLE if nodeid.startswith(path)), nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """What `-n` uses, whatever `--dist` says."""
    config.option.loadscopereorder = False
    return Scheduling(config, log)
