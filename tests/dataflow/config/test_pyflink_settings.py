"""The settings of PyFlink: checkpoints, state backends, execution, resources."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock import (
    CheckpointingMode,
    Configuration,
    Duration,
    EmbeddedRocksDBStateBackend,
    EmbeddedSQLiteStateBackend,
    ExternalizedCheckpointRetention,
    FileSystemCheckpointStorage,
    GraphError,
    HashMapStateBackend,
    JobManagerCheckpointStorage,
    MemorySize,
    PredefinedOptions,
    RestartStrategies,
    SlotSharingGroup,
    StreamExecutionEnvironment,
)
from penstock.dataflow.config.cold_store import ColdStoreKind


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_in_process()


def test_checkpoint_settings_are_read_as_they_were_set(env: StreamExecutionEnvironment):
    config = env.get_checkpoint_config()
    assert config.get_checkpoint_interval() == -1 and not config.is_checkpointing_enabled()
    config.set_checkpoint_interval(500).set_checkpoint_timeout(7_000)
    config.set_min_pause_between_checkpoints(20).set_tolerable_checkpoint_failure_number(3)
    config.set_alignment_timeout(Duration.of_millis(40)).enable_unaligned_checkpoints()
    assert config.get_checkpoint_interval() == 500 and config.is_checkpointing_enabled()
    assert config.get_checkpoint_timeout() == 7_000
    assert config.get_min_pause_between_checkpoints() == 20
    assert config.get_tolerable_checkpoint_failure_number() == 3
    assert not config.is_fail_on_checkpointing_errors()
    assert config.get_aligned_checkpoint_timeout() == Duration.of_millis(40)
    assert config.is_unaligned_checkpoints_enabled() and env.is_unaligned_checkpoints_enabled()
    config.disable_unaligned_checkpoints().set_fail_on_checkpointing_errors(True)
    assert config.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE
    assert config.is_fail_on_checkpointing_errors()
    assert config.get_max_concurrent_checkpoints() == 1
    config.set_max_concurrent_checkpoints(4)
    assert env.get_checkpoint_config().get_max_concurrent_checkpoints() == 4
    with pytest.raises(GraphError, match="need not be forced"):
        config.set_force_unaligned_checkpoints(True)  # type: ignore[attr-defined]


def test_a_retention_is_read_as_it_was_set(env: StreamExecutionEnvironment):
    config = env.get_checkpoint_config()
    kinds = ExternalizedCheckpointRetention
    assert config.get_externalized_checkpoint_retention() is kinds.RETAIN_ON_CANCELLATION
    assert env.config.retention is None and config.is_externalized_checkpoints_enabled()
    for kind in kinds:
        config.enable_externalized_checkpoints(kind)
        assert config.get_externalized_checkpoint_retention() is kind is env.config.retention
    assert not config.is_externalized_checkpoints_enabled()
    with pytest.raises(GraphError, match="is an ExternalizedCheckpointRetention, not 'RETAIN"):
        config.set_externalized_checkpoint_retention("RETAIN")  # type: ignore[arg-type]
    key = "execution.checkpointing.externalized-checkpoint-retention"
    env.configure(Configuration().set_string(key, "DELETE_ON_CANCELLATION"))
    assert env.config.retention is kinds.DELETE_ON_CANCELLATION
    with pytest.raises(GraphError, match="it is one of DELETE_ON_CANCELLATION, RETAIN"):
        env.configure(Configuration().set_string(key, "KEEP"))


def test_a_checkpoint_storage_sets_the_folder(env: StreamExecutionEnvironment):
    config = env.get_checkpoint_config()
    assert isinstance(config.get_checkpoint_storage(), JobManagerCheckpointStorage)
    config.set_checkpoint_storage(FileSystemCheckpointStorage("file:///tmp/job", 4096))
    assert (env.config.checkpoint_dir, env.config.inline_threshold) == ("/tmp/job", 4096)
    storage: Any = config.get_checkpoint_storage()
    assert storage.get_checkpoint_path() == "file:///tmp/job"
    assert storage.get_min_file_size_threshold() == 4096
    config.set_checkpoint_storage_dir("file:///tmp/other/")
    assert storage is not config.get_checkpoint_storage()
    assert config.get_checkpoint_storage().get_checkpoint_path() == "file:///tmp/other/"
    env.config.checkpoint_dir = "/tmp/third"  # as the command line does
    assert config.get_checkpoint_storage().get_checkpoint_path() == "/tmp/third"
    config.set_checkpoint_storage(JobManagerCheckpointStorage())
    assert env.config.checkpoint_dir is None
    with pytest.raises(GraphError, match="a checkpoint storage is a FileSystemCheckpointStorage"):
        config.set_checkpoint_storage("/tmp/job")  # type: ignore[arg-type]
    with pytest.raises(GraphError):
        FileSystemCheckpointStorage("hdfs://name/job")
    config.set_checkpoint_storage(FileSystemCheckpointStorage("s3://bucket/job"))
    assert env.config.checkpoint_dir == "s3://bucket/job"


def test_state_backends_are_accepted(env: StreamExecutionEnvironment):
    assert env.get_state_backend() is None
    for backend in (HashMapStateBackend(), EmbeddedRocksDBStateBackend(True)):
        assert env.set_state_backend(backend).get_state_backend() is backend
    with pytest.raises(GraphError, match="Penstock tunes RocksDB by itself"):
        EmbeddedRocksDBStateBackend().set_options(None)  # type: ignore[attr-defined]
    with pytest.raises(GraphError, match="a state backend is a HashMapStateBackend, an"):
        env.set_state_backend("rocksdb")  # type: ignore[arg-type]


def test_settings_of_rocksdb_are_accepted_without_effect(caplog: Any):
    for given, incremental in ((None, True), (True, True), (False, False)):
        backend = EmbeddedRocksDBStateBackend(given)
        assert backend.is_incremental_checkpoints_enabled() is incremental
    assert backend.get_db_storage_paths() is None
    assert backend.get_predefined_options() is PredefinedOptions.DEFAULT
    assert backend.get_number_of_transfer_threads() == 4
    with caplog.at_level("INFO", "penstock"):
        backend.set_db_storage_paths("/a", "/b")
        backend.set_predefined_options(PredefinedOptions.FLASH_SSD_OPTIMIZED)
        backend.set_number_of_transfer_threads(8)
    assert backend.get_db_storage_paths() == ["/a", "/b"]
    assert backend.get_predefined_options() is PredefinedOptions.FLASH_SSD_OPTIMIZED
    assert backend.get_number_of_transfer_threads() == 8
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "set_db_storage_paths has no effect",
        "set_predefined_options has no effect",
        "set_number_of_transfer_threads has no effect",
    ]


def test_the_database_of_large_state_is_chosen(env: StreamExecutionEnvironment):
    assert env.config.cold_store is None
    env.set_state_backend(HashMapStateBackend())
    assert env.config.cold_store is None
    env.set_state_backend(EmbeddedSQLiteStateBackend())
    assert env.config.cold_store is ColdStoreKind.SQLITE
    env.set_state_backend(EmbeddedRocksDBStateBackend())
    assert env.config.cold_store is ColdStoreKind.ROCKSDB
    configuration = Configuration()
    configuration.set_string("state.backend.cold-store", "SQLite")
    env.configure(configuration)
    assert env.config.cold_store is ColdStoreKind.SQLITE
    configuration.set_string("state.backend.cold-store", "leveldb")
    with pytest.raises(GraphError, match="leveldb, which cannot be: it is rocksdb or sqlite"):
        env.configure(configuration)


def test_restart_strategies_can_be_read(env: StreamExecutionEnvironment):
    strategy = RestartStrategies.fixed_delay_restart(3, 100)
    assert env.get_restart_strategy() is None
    assert env.set_restart_strategy(strategy).get_restart_strategy() == strategy
    env.get_config().set_restart_strategy(RestartStrategies.no_restart())
    assert env.get_config().get_restart_strategy() == RestartStrategies.no_restart()
    with pytest.raises(GraphError, match="is made by RestartStrategies"):
        env.get_config().set_restart_strategy(3)  # type: ignore[arg-type]


def test_settings_of_the_jvm_are_refused(env: StreamExecutionEnvironment):
    config: Any = env.get_config()
    assert config.is_object_reuse_enabled() and config.has_auto_generated_uids_enabled()
    for name, reason in (
        ("enable_force_kryo", "records are encoded by their Python types"),
        ("set_latency_tracking_interval", "penstock run shows the lag"),
    ):
        assert not hasattr(config, name)
        with pytest.raises(GraphError, match=f"ExecutionConfig has no '{name}': {reason}"):
            getattr(config, name)


def test_memory_sizes_are_read_in_every_unit():
    size = MemorySize.of_mebi_bytes(2048)
    assert (size.get_bytes(), size.get_kibi_bytes(), size.get_mebi_bytes()) == (2**31, 2**21, 2048)
    assert (size.get_gibi_bytes(), size.get_tebi_bytes()) == (2, 0)
    assert MemorySize(1) < size and MemorySize(1) <= MemorySize(1) == MemorySize(1)
    assert str(size) == "2147483648 bytes" and len({size, MemorySize(2**31)}) == 1
    for wrong in (-1, 1.5, "1 mb"):
        with pytest.raises(GraphError, match="a memory size is a number of bytes"):
            MemorySize(wrong)  # type: ignore[arg-type]


def test_slot_sharing_groups_are_accepted(env: StreamExecutionEnvironment):
    group = (
        SlotSharingGroup.builder("wide")
        .set_cpu_cores(1.5)
        .set_task_heap_memory_mb(64)
        .set_task_off_heap_memory_mb(8)
        .set_managed_memory(MemorySize(9))
        .set_external_resource("gpu", 1.0)
        .build()
    )
    assert (group.get_name(), group.get_cpu_cores()) == ("wide", 1.5)
    assert group.get_task_heap_memory() == MemorySize.of_mebi_bytes(64)
    assert group.get_task_off_heap_memory() == MemorySize.of_mebi_bytes(8)
    assert group.get_managed_memory() == MemorySize(9)
    assert group.get_external_resources() == {"gpu": 1.0}
    stream = env.register_slot_sharing_group(group).from_collection([2, 1]).map(abs)
    assert list(stream.slot_sharing_group(group).slot_sharing_group("x").execute_and_collect())
    with pytest.raises(GraphError, match="is a name or a SlotSharingGroup, not 7"):
        stream.slot_sharing_group(7)  # type: ignore[arg-type]


def test_chaining_is_switched_off_for_the_whole_job(env: StreamExecutionEnvironment):
    env.from_sequence(1, 3).map(abs).map(str).print()
    assert env.is_chaining_enabled()
    assert len(env.get_execution_plan("mermaid").splitlines()) == 2
    assert not env.disable_operator_chaining().is_chaining_enabled()
    assert env.get_execution_plan("mermaid").count("forward") == 3
    other = StreamExecutionEnvironment.get_execution_environment(
        Configuration({"pipeline.operator-chaining.enabled": "false"})
    )
    assert not other.is_chaining_enabled()


def test_a_job_without_chains_has_the_same_results(env: StreamExecutionEnvironment):
    stream = env.disable_operator_chaining().from_collection(range(50)).map(lambda n: n % 3)
    counts = stream.key_by(lambda n: n).count().map(lambda pair: list(pair))
    assert dict(map(tuple, counts.execute_and_collect())) == {0: 17, 1: 17, 2: 16}


def test_the_plan_is_the_json_of_flink(env: StreamExecutionEnvironment):
    env.set_parallelism(2)
    numbers = env.from_collection([1]).name("numbers")
    numbers.map(str).key_by(len).count().print()
    nodes = json.loads(env.get_execution_plan())["nodes"]
    assert [(node["id"], node["type"], node["pact"], node["parallelism"]) for node in nodes] == [
        (1, "numbers", "Data Source", 1),
        (2, "Map", "Operator", 2),
        (3, "Count", "Operator", 2),
        (4, "Print to Std. Out", "Data Sink", 2),
    ]
    assert [node.get("predecessors") for node in nodes] == [
        None,
        [{"id": 1, "ship_strategy": "REBALANCE", "side": "second"}],
        [{"id": 2, "ship_strategy": "HASH", "side": "second"}],
        [{"id": 3, "ship_strategy": "FORWARD", "side": "second"}],
    ]
    with pytest.raises(GraphError, match="drawn as 'json', 'text' or 'mermaid', not 'png'"):
        env.get_execution_plan("png")


def test_a_configuration_is_read_like_a_dict():
    config = Configuration.from_dict({"a": "1"}).set_bytearray("b", bytearray(b"x"))
    target: dict[str, Any] = {"z": 0}
    config.add_all_to_dict(target)
    assert target == {"z": 0, "a": "1", "b": bytearray(b"x")}
    assert config.get_bytearray("b") == bytearray(b"x") and config.get_bytearray("c") is None
    assert Configuration.parse_list_value("a; b") == ["a", "b"]
    assert Configuration.parse_list_value("[a, b]") == ["a", "b"]
