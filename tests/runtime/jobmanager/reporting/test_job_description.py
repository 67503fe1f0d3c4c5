"""The graph and the settings of a job, as its clients get them."""

import json

from penstock import RestartStrategies, StreamExecutionEnvironment
from penstock.dataflow.graph.compile import compile_graph
from penstock.runtime.jobmanager.reporting.job_description import describe_config, describe_graph


def environment() -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    words = env.from_collection(["a", "b"]).name("Words").uid("words")
    words.key_by(lambda word: word).map(str.upper).name("Upper").uid("upper").print()
    return env


def test_chains_are_vertices_and_links_are_edges():
    env = environment()
    graph = describe_graph(compile_graph(env._graph, env.config))
    first, *_, last = graph["vertices"]
    assert (first["id"], first["source"], first["sink"]) == (0, True, False)
    assert first["operators"][0] == {"uid": "words", "name": "Words", "stateful": True}
    assert last["sink"] and last["parallelism"] == 2 and last["loop"] is None
    assert [edge["partitioning"] for edge in graph["edges"]] == ["hash"]
    assert not graph["edges"][0]["back_edge"]
    assert json.loads(json.dumps(graph)) == graph


def test_settings_are_plain_values_without_the_values_of_parameters():
    env = environment()
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 1_000))
    env.config.job_parameters = {"password": "secret"}
    env.config.checkpoint_dir = "state"
    config = describe_config(env.config, "/jobs")
    assert config["checkpoint_dir"] == "/jobs/state"
    assert config["job_parameters"] == ["password"]
    assert config["restart"]["attempts"] == 3
    assert config["runtime_mode"] == "streaming"
    assert "secret" not in json.dumps(config)
