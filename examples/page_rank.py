"""Which modules of the standard library are the most important ones, by PageRank?

    python examples/page_rank.py [--kill-worker-after 0.5]

PageRank by differences (Zhang et al., Maiter, 2014): a module that gains rank passes a share of
what it has gained on to each module that it imports, around a loop, until what is left to pass on
is next to nothing. Were it passed on at once, there would be as many messages as there are paths
through the graph. So a module that gains sends itself a note around the loop, and passes on what
has come together until the note is back.

A module that imports nothing keeps what it gains. networkx shares it out among all modules, and
since all get the same that only makes all ranks greater by one factor; so both are equal when
ranks are divided by their sum.

networkx needs SciPy for its PageRank: `pip install scipy`.
"""

import sys

import networkx
from import_graph import import_graph
from watched import environment, options, watched

from penstock import KeyedProcessFunction, ValueStateDescriptor

DAMPING = 0.85
#: What is not passed on, as a share of what each module starts with. The rank of a module gets too
#: small by no more than this share of itself, since all ranks are sums of what is passed on.
NEGLIGIBLE = 1e-6


class PageRank(KeyedProcessFunction):
    """The rank of one module, and how much of it has not been passed on yet."""

    def open(self, runtime_context):
        self.imports = runtime_context.get_state(ValueStateDescriptor("imports"))
        self.rank = runtime_context.get_state(ValueStateDescriptor("rank"))
        self.waiting = runtime_context.get_state(ValueStateDescriptor("waiting"))

    def process_element(self, value, ctx):
        kind, module, content = value
        waiting = self.waiting.value() or 0.0
        if kind == "note":
            self.waiting.update(0.0)
            imports = self.imports.value()
            for other in imports:
                yield "gain", other, DAMPING * waiting / len(imports)
            return
        starts = kind == "imports"
        if starts:
            self.imports.update(content)
        gain = 1.0 if starts else content
        self.rank.update((self.rank.value() or 0.0) + gain)
        self.waiting.update(waiting + gain)
        # With more than a little waiting already, a note is on its way.
        if self.imports.value() and (starts or waiting <= NEGLIGIBLE < waiting + gain):
            yield "note", module, None

    def end_input(self, ctx):
        yield "result", ctx.get_current_key(), self.rank.value()


def main() -> int:
    given = options(__doc__)
    graph = import_graph()

    env = environment(given)
    entering = env.from_collection(("imports", *entry) for entry in graph.items())
    around = env.create_feedback("gains")
    told = entering.union(around).key_by(lambda record: record[1]).process(PageRank())
    around.close_with(told.filter(lambda record: record[0] != "result"))
    results = told.filter(lambda record: record[0] == "result").map(lambda record: record[1:])

    with watched(given) as watch:
        found = dict(results.execute_and_collect("page rank"))

    edges = networkx.DiGraph(graph)
    expected = networkx.pagerank(edges, DAMPING, tol=1e-12, max_iter=1000)
    total = sum(found.values())
    errors = [abs(found[module] / total - rank) for module, rank in expected.items()]
    best = sorted(found, key=found.__getitem__, reverse=True)[:5]
    return watch.tell(
        f"page rank: {len(edges):,} nodes · {edges.number_of_edges():,} edges · the highest are "
        f"{', '.join(best)} · greatest error {max(errors):.1e}",
        found.keys() == expected.keys() and max(errors) < 1e-6,
    )


if __name__ == "__main__":
    sys.exit(main())
