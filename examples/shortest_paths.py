"""How many imports away is each module of the standard library from each of its packages?

    python examples/shortest_paths.py [--kill-worker-after 0]

The edges arrive as a stream, in any order. Each module keeps what it imports, and the shortest
paths to it that are known. Whenever it hears of a shorter one it tells the modules that it
imports, around a loop. When all edges have come and nobody has anything to tell any more the loop
ends, and each module gives its distances. The result is compared with that of networkx.
"""

import math
import sys

import networkx
from import_graph import import_graph
from watched import environment, options, watched

from penstock import KeyedProcessFunction, ValueStateDescriptor


class Distances(KeyedProcessFunction):
    """How far one module is from each start, as far as is known."""

    def open(self, runtime_context):
        self.distances = runtime_context.get_state(ValueStateDescriptor("distances"))
        self.imports = runtime_context.get_state(ValueStateDescriptor("imports"))

    def process_element(self, value, ctx):
        distances, imports = self.distances.value() or {}, self.imports.value() or ()
        match value:
            case "edge", _, other:
                self.imports.update((*imports, other))
                for start, length in distances.items():
                    yield "path", other, start, length + 1
            case "path", _, start, length if length < distances.get(start, math.inf):
                self.distances.update(distances | {start: length})
                for other in imports:
                    yield "path", other, start, length + 1

    def end_input(self, ctx):
        for start, length in (self.distances.value() or {}).items():
            yield "result", start, ctx.get_current_key(), length


def main() -> int:
    given = options(__doc__)
    graph = import_graph()
    starts = sorted({module.rpartition(".")[0] for module in graph} & graph.keys())
    records = [("path", start, start, 0) for start in starts]
    records += [("edge", module, other) for module, imports in graph.items() for other in imports]

    env = environment(given)
    entering = env.from_generator(lambda i: records[i], len(records), records_per_second=4_000)
    around = env.create_feedback("paths")
    told = entering.union(around).key_by(lambda record: record[1]).process(Distances())
    around.close_with(told.filter(lambda record: record[0] == "path"))
    results = told.filter(lambda record: record[0] == "result").map(lambda record: record[1:])

    with watched(given) as watch:
        found = list(results.execute_and_collect("shortest paths"))

    edges = networkx.DiGraph(graph)
    expected = [
        (start, module, length)
        for start in starts
        for module, length in networkx.single_source_shortest_path_length(edges, start).items()
    ]
    return watch.tell(
        f"shortest paths: {len(edges):,} nodes · {edges.number_of_edges():,} edges · "
        f"{len(expected):,} paths from {len(starts)} packages",
        sorted(found) == sorted(expected),
    )


if __name__ == "__main__":
    sys.exit(main())
