"""Sources and sinks are replaced, and programs that cannot be compared are refused."""

import pytest

from penstock import PrintSink, StreamExecutionEnvironment
from penstock.dataflow.errors import GraphError
from penstock.dataflow.graph.uids import assign_uids
from penstock.dataflow.source import Source
from penstock.runtime.control.job_code import JobCode, pack, unpack
from penstock.runtime.shadow.captured_sink import CapturedSink
from penstock.runtime.shadow.shadow_code import endpoints_of, shadow_code
from penstock.runtime.shadow.sliced_source import SlicedSource


class Endless(Source):
    bounded = False
    rewindable = True

    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def create_enumerator(self, parallelism): ...

    def create_reader(self, context): ...


class Prepared(Endless):
    def prepare(self, preparation): ...


def code_of(source, interval=50):
    env = StreamExecutionEnvironment.get_execution_environment()
    if interval is not None:
        env.enable_checkpointing(interval)
    env.from_source(source).map(str).sink_to(PrintSink())
    env.config.checkpoint_dir = "jobs/clicks"
    return JobCode(env._graph, env.config)


def test_only_sources_and_sinks_and_the_folder_are_others(tmp_path):
    code = code_of(Endless())
    uids = assign_uids(code.graph)
    changed = unpack(shadow_code(pack(code), tmp_path))
    source, function, sink = (one.function for one in changed.graph.operators)
    assert (type(source), function, type(sink)) == (SlicedSource, str, CapturedSink)
    assert assign_uids(changed.graph) == uids
    assert changed.config.checkpoint_dir == str(tmp_path / "job")
    assert changed.config.restart.kind == "none"
    assert [bool(one.output) for one in endpoints_of(tmp_path)] == [False, True]
    assert type(code.graph.operators[0].function) is Endless


@pytest.mark.parametrize(
    "source, reason",
    [
        (Endless(rewindable=False), "cannot be read again from a position"),
        (Endless(acknowledges=True), "missing in the running job"),
        (Endless(exclusive=True), "only one job can read a Endless at a time"),
        (Prepared(), "keeps data in the folder of the job"),
    ],
)
def test_sources_that_the_running_job_would_miss_are_refused(tmp_path, source, reason):
    with pytest.raises(GraphError, match=f"cannot read the source 'Source.*{reason}"):
        shadow_code(pack(code_of(source)), tmp_path)


def test_a_program_without_snapshots_is_refused(tmp_path):
    with pytest.raises(GraphError, match=r"call env\.enable_checkpointing"):
        shadow_code(pack(code_of(Endless(), None)), tmp_path)
