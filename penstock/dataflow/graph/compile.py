"""Compile a job graph to an execution graph: chains, links and loops.

1. Give every operator a uid and a parallelism. Replace feedbacks by direct connections between
   operators (`JobGraph.connections`).
2. Chain operators that are connected by forward edges. Flink's rules apply: both operators have the
   same parallelism, the second has one input and no requests in flight, and chaining is not
   disabled.
3. Find the back-edges by one depth-first search from a virtual root above the sources. The loops
   are the strongly connected components (`cycles.py`).
4. Make a link for each connection between two chains.

The compiler runs no user code and opens no files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container
from dataclasses import replace

from penstock.dataflow.config import JobConfig, check_parallelism
from penstock.dataflow.errors import GraphError
from penstock.dataflow.functions import has_end_input
from penstock.dataflow.graph.cycles import back_edges, cyclic_components, has_cycle, unreached
from penstock.dataflow.graph.event_time import check_event_time, check_watermarks
from penstock.dataflow.graph.execution_graph import (
    Chain,
    ChainedOperator,
    ExecutionGraph,
    Link,
    OperatorInfo,
)
from penstock.dataflow.graph.job_graph import (
    Chaining,
    Connection,
    JobGraph,
    Operator,
    Partitioning,
    key_migration,
)
from penstock.dataflow.graph.operator_names import detail_of
from penstock.dataflow.graph.uids import assign_uids, former_uids
from penstock.dataflow.state.checkpointed_function import checkpointed_function


def compile_graph(
    graph: JobGraph, config: JobConfig, *, unchained: Container[tuple[str, str]] = ()
) -> ExecutionGraph:
    """Return the execution graph of a program.

    Arguments:
        graph: the job graph of the program.
        config: the settings of the program.
        unchained: pairs (uid of a producer, uid of a consumer) that must not be chained, because
            the snapshot to restore contains records in flight between them.

    Raises:
        GraphError: if the program cannot run. The message names the change to make.
    """
    config.validate()
    check_event_time(graph)
    check_watermarks(graph, config)
    _check_side_outputs(graph)
    infos = _operators(graph, config)
    connections = graph.connections()
    loop_at = _operator_loops(infos, connections)
    partitionings = [_partitioning(connection, infos) for connection in connections]
    before: dict[int, int] = {}
    if config.chaining:
        before = _chained(graph, infos, connections, partitionings, loop_at, unchained)

    def first(operator: int) -> int:
        while operator in before:
            operator = before[operator]
        return operator

    heads = [operator for operator in infos if operator not in before]
    chain_of = {operator: heads.index(first(operator)) for operator in infos}
    links: list[Link] = []
    fed_back: list[bool] = []
    for connection, partitioning in zip(connections, partitionings, strict=True):
        if before.get(connection.target) == connection.source:
            continue
        fed_back.append(connection.feedback)
        links.append(
            Link(
                len(links),
                connection.edge,
                chain_of[connection.source],
                chain_of[connection.target],
                infos[connection.source].uid,
                infos[connection.target].uid,
                connection.input,
                partitioning,
                tag=connection.tag,
            )
        )
    links, loops = _find_loops([infos[head] for head in heads], links, fed_back)
    chains = tuple(
        _chain(index, head, infos, before, links, connections) for index, head in enumerate(heads)
    )
    operators = tuple(infos.values())
    compiled = ExecutionGraph(
        chains, tuple(links), config.max_parallelism, operators=operators, loops=loops
    )
    return replace(compiled, fingerprint=_fingerprint(compiled))


def _check_side_outputs(graph: JobGraph) -> None:
    """Check that each side output for late records, and of each source, is read.

    Otherwise the operator would drop the records that the program wants to keep.

    Raises:
        GraphError: if the program has not called `get_side_output` for such a side output.
    """
    for operator in graph.running:
        for tag in operator.spec.late_tags:
            if tag is not None and tag.tag_id not in operator.side_outputs:
                raise GraphError(
                    f"operator {operator.name!r} sends late records to the side output "
                    f"{tag.tag_id!r}, and the program does not read it: call "
                    f"get_side_output({tag!r}) on the stream of its results. Without a side "
                    f"output, late records are dropped and counted"
                )
        for tag in operator.spec.source_tags:
            if tag.tag_id not in operator.side_outputs:
                raise GraphError(
                    f"operator {operator.name!r} sends records to the side output "
                    f"{tag.tag_id!r}, and the program does not read it: call "
                    f"get_side_output({tag!r}) on the stream of the source"
                )


def _operators(graph: JobGraph, config: JobConfig) -> dict[int, OperatorInfo]:
    if not any(operator.spec.is_source for operator in graph.operators):
        raise GraphError(
            "the program has no source: begin with env.from_collection(...) or another"
        )
    uids = assign_uids(graph)
    former = former_uids(graph, uids)
    infos: dict[int, OperatorInfo] = {}
    for operator in graph.running:
        parallelism = operator.parallelism or config.parallelism
        if operator.non_parallel_reason:
            parallelism = 1
        check_parallelism(parallelism, config.max_parallelism, f"operator {operator.name!r}")
        keys = key_migration(graph, operator.id)
        infos[operator.id] = OperatorInfo(
            operator.id,
            uids[operator.id],
            operator.name,
            operator.spec.without_code(),
            parallelism,
            has_end_input(operator.function),
            checkpointed_function(operator.function) is not None
            or bool(operator.broadcast_states)
            or operator.spec.own_state,
            former.get(operator.id),
            detail_of(operator),
            1 if keys is None else keys.key_version,
            keys is not None and keys.migrate_key is not None,
            operator.spec.is_source and operator.function.reads_in_turns,
        )
    return infos


def _operator_loops(
    infos: dict[int, OperatorInfo], connections: list[Connection]
) -> dict[int, int]:
    """Return the number of the loop for each operator in a loop, keyed by operator id.

    Raises:
        GraphError: if no source reaches a loop.
    """
    edges = [(connection.source, connection.target) for connection in connections]
    if not has_cycle(edges):
        return {}
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(infos)
    graph.add_edges_from(edges)
    loops: list[set[int]] = cyclic_components(graph)
    sources = [id for id, info in infos.items() if info.spec.is_source]
    unreachable = unreached(graph, sources)
    for loop in loops:
        if loop & unreachable:
            names = ", ".join(repr(infos[id].name) for id in sorted(loop))
            raise GraphError(
                f"no source reaches the loop of {names}, so no record would ever enter it: unite "
                f"what it reads with a stream that comes from a source"
            )
    return {operator: number for number, loop in enumerate(loops) for operator in loop}


def _partitioning(connection: Connection, infos: dict[int, OperatorInfo]) -> Partitioning:
    source, target = infos[connection.source], infos[connection.target]
    same = source.parallelism == target.parallelism
    if connection.partitioning is None:
        return Partitioning.FORWARD if same else Partitioning.REBALANCE
    if connection.partitioning is Partitioning.FORWARD and not same:
        raise GraphError(
            f"forward() from {source.name!r} (parallelism {source.parallelism}) to {target.name!r} "
            f"(parallelism {target.parallelism}) needs equal parallelism; use rebalance()"
        )
    return connection.partitioning


def _chained(
    graph: JobGraph,
    infos: dict[int, OperatorInfo],
    connections: list[Connection],
    partitionings: list[Partitioning],
    loop_at: dict[int, int],
    unchained: Container[tuple[str, str]],
) -> dict[int, int]:
    """Return the id of the producer to which each chained operator is chained.

    The keys are the ids of the chained operators. All other operators begin a chain.
    """
    by_id = {operator.id: operator for operator in graph.running}
    entering: dict[int, list[int]] = {}
    for number, connection in enumerate(connections):
        entering.setdefault(connection.target, []).append(number)
    # No chain contains a whole loop. In each loop, one operator has a second input, which comes
    # from outside the loop. An operator with two inputs begins a chain.
    before: dict[int, int] = {}
    for target, numbers in entering.items():
        source = connections[numbers[0]].source
        if (
            len(numbers) == 1
            and partitionings[numbers[0]] is Partitioning.FORWARD
            and _may_chain(by_id[source], by_id[target])
            and (infos[source].uid, infos[target].uid) not in unchained
        ):
            before[target] = source
    # An operator with `end_input` that reads from a loop begins a chain. Its input ends only when
    # the loop has ended. If it were chained to the loop, its `end_input` would be called too early,
    # while records still arrive.
    for operator, info in infos.items():
        ahead = operator
        while info.has_end_input and ahead in before:
            ahead = before[ahead]
            if loop_at.get(ahead) not in (None, loop_at.get(operator)):
                del before[operator]
                break
    return before


def _may_chain(first: Operator, second: Operator) -> bool:
    return (
        first.chaining is not Chaining.NEVER
        and second.chaining is Chaining.ALWAYS
        and not second.spec.begins_chain
    )


def _find_loops(
    heads: list[OperatorInfo], links: list[Link], fed_back: list[bool]
) -> tuple[list[Link], tuple[tuple[int, ...], ...]]:
    """Find back-edges and loops.

    Returns:
        The links, with back-edges marked, and the loops as tuples of the chains' indices.
    """
    ends = [(heads[link.source].uid, heads[link.target].uid) for link in links]
    if not has_cycle(ends):
        return links, ()
    import networkx as nx

    graph = nx.DiGraph()
    graph.add_nodes_from(head.uid for head in heads)
    graph.add_edges_from(ends)
    # If a loop has several entries, the back-edges depend on the order of the search. Edges that
    # come from a feedback of the program are searched last, so that they become the back-edges.
    regular = {pair for pair, feedback in zip(ends, fed_back, strict=True) if not feedback}
    sources = [head.uid for head in heads if head.spec.is_source]
    back = back_edges(graph, sources, set(ends) - regular)
    index = {head.uid: number for number, head in enumerate(heads)}
    loops: list[set[str]] = cyclic_components(graph)
    return (
        [replace(link, is_back_edge=pair in back) for link, pair in zip(links, ends, strict=True)],
        tuple(tuple(sorted(index[uid] for uid in loop)) for loop in loops),
    )


def _chain(
    id: int,
    head: int,
    infos: dict[int, OperatorInfo],
    before: dict[int, int],
    links: list[Link],
    connections: list[Connection],
) -> Chain:
    tags = {connection.target: connection.tag for connection in connections}

    def node(operator: int) -> ChainedOperator:
        info = infos[operator]
        children = [node(other) for other, producer in before.items() if producer == operator]
        return ChainedOperator(
            info,
            tuple(children),
            tuple(link.id for link in links if link.producer == info.uid),
            tags[operator] if operator in before else None,
        )

    root = node(head)
    return Chain(
        id,
        " → ".join(member.operator.name for member in root.walk()),
        root,
        infos[head].parallelism,
        tuple(link.id for link in links if link.target == id),
        tuple(link.id for link in links if link.source == id),
    )


def _fingerprint(graph: ExecutionGraph) -> str:
    """Return a digest of the uids, kinds, links and number of key groups of a graph.

    The digest is the same in every run of a program.
    """
    parts = [
        sorted((info.uid, info.spec.name) for info in graph.operators),
        sorted(
            (link.producer, link.consumer, link.input, link.partitioning.value)
            + (() if link.tag is None else (link.tag,))
            for link in graph.links
        ),
        graph.max_parallelism,
    ]
    return hashlib.blake2b(repr(parts).encode(), digest_size=16).hexdigest()
