"""Which modules of the standard library hang together by imports, in whatever direction?

    python examples/connected_components.py [--kill-worker-after 0.1]

Each module keeps the first name, in order of the alphabet, that it has heard of, beginning with
its own, and tells its neighbours of a better one, around a loop. When nobody hears of a better
name any more, all modules that hang together have the same one. The result is compared with that
of networkx.
"""

import sys

import networkx
from import_graph import import_graph
from watched import environment, options, watched

from penstock import KeyedProcessFunction, ValueStateDescriptor


class Label(KeyedProcessFunction):
    """The first of the names that one module has heard of."""

    def open(self, runtime_context):
        self.label = runtime_context.get_state(ValueStateDescriptor("label"))
        self.neighbours = runtime_context.get_state(ValueStateDescriptor("neighbours"))

    def process_element(self, value, ctx):
        kind, _, name = value
        label, neighbours = self.label.value(), self.neighbours.value() or ()
        if kind == "neighbour":
            self.neighbours.update((*neighbours, name))
            if label is not None:
                yield "label", name, label
        elif label is None or name < label:
            self.label.update(name)
            for neighbour in neighbours:
                yield "label", neighbour, name

    def end_input(self, ctx):
        yield "result", ctx.get_current_key(), self.label.value()


def records_of(entry):
    """Emit what a module and its imports put into the loop."""
    module, imports = entry
    yield "label", module, module
    for other in imports:
        yield "neighbour", module, other
        yield "neighbour", other, module


def main() -> int:
    given = options(__doc__)
    graph = import_graph()
    modules = list(graph.items())

    env = environment(given)
    arriving = env.from_generator(lambda i: modules[i], len(modules), records_per_second=2_000)
    entering = arriving.flat_map(records_of)
    around = env.create_feedback("labels")
    told = entering.union(around).key_by(lambda record: record[1]).process(Label())
    around.close_with(told.filter(lambda record: record[0] == "label"))
    results = told.filter(lambda record: record[0] == "result").map(lambda record: record[1:])

    with watched(given) as watch:
        found = list(results.execute_and_collect("connected components"))

    edges = networkx.Graph(graph)
    components = list(networkx.connected_components(edges))
    expected = {module: min(component) for component in components for module in component}
    return watch.tell(
        f"connected components: {len(edges):,} nodes · {edges.number_of_edges():,} edges · "
        f"{len(components)} components",
        sorted(found) == sorted(expected.items()),
    )


if __name__ == "__main__":
    sys.exit(main())
