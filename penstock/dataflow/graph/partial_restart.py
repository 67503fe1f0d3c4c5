"""Decide which tasks restart with a failed one, and whether the others can continue. Sans-IO.

A failed task restarts with the tasks from which it gets records, back to the sources. (Carbone et
al. 2015, section 4.4 and figure 4.) These tasks also send records to tasks that continue, which
have processed some of them. So they must send the same records in the same order again.

Some tasks do so whenever they read the same records. Others depend on the order of the records of
different channels, on watermarks, and on the times at which timers fire. They log their steps, and
repeat them (`penstock.runtime.network.step_logs`). So do sources that read their splits in turns.
Which task gets a record of `rebalance`, `rescale` or `shuffle` follows from the state of the sender
(`penstock.runtime.operators.state.routing_positions`).

Tasks of a loop depend on the order between the records from outside of the loop and those that come
back. They log no steps. So a task of a loop continues if only tasks in front of the loop restart,
but tasks behind a loop restart together with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from penstock.dataflow.graph.execution_graph import ChainedOperator, ChannelId, ExecutionGraph

Task = tuple[int, int]


def chains_to_log(plan: ExecutionGraph) -> frozenset[int]:
    """Return the chains whose tasks must log their steps to repeat them.

    A chain whose tasks cannot repeat their steps is not among them, nor is one of a loop, nor one
    that sends nothing.
    """
    inputs = Counter(
        plan.links[channel.link].target for link in plan.links for channel in plan.channels(link)
    )
    found = set[int]()
    for chain in plan.running_chains:
        if not chain.outputs or plan.loop_of(chain.id) is not None:
            continue
        specs = [node.operator.spec for node in chain.walk()]
        replays = all(spec.replays for spec in specs)
        if chain.is_source:
            # The order of its splits is all that it logs.
            logs = chain.root.operator.reads_in_turns and replays
        else:
            several_inputs = inputs[chain.id] > chain.parallelism
            repeats = all(spec.can_repeat_steps for spec in specs)
            logs = repeats and _gets_same_batches(chain.root) and (several_inputs or not replays)
        if logs:
            found.add(chain.id)
    return frozenset(found)


def _gets_same_batches(node: ChainedOperator, same: bool = True) -> bool:
    """Return whether the operators that depend on batches get the same ones again.

    Arguments:
        node: an operator of a task that repeats its steps, with those behind it.
        same: whether the operator gets the same batches. The task does, if it must.
    """
    spec = node.operator.spec
    if spec.by_batch and not same:
        return False
    # Firing timers emit records in pieces, whose sizes may depend on the time that they take.
    same = same and (spec.by_batch or spec.replays)
    return all(_gets_same_batches(child, same) for child in node.children)


class PartialRestarts:
    """The restarts of single tasks of an execution graph.

    Arguments:
        plan: the execution graph.

    Example:
        >>> from penstock import StreamExecutionEnvironment
        >>> from penstock.dataflow.graph.compile import compile_graph
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> _ = env.set_parallelism(2)
        >>> _ = env.from_sequence(1, 9).key_by(lambda n: n % 2).count().print()
        >>> restarts = PartialRestarts(compile_graph(env._graph, env.config))
        >>> sorted(restarts.with_upstream([(1, 0)]))
        [(0, 0), (0, 1), (1, 0)]
        >>> restarts.why_not({(0, 0), (0, 1), (1, 0)}) is None
        True
    """

    def __init__(self, plan: ExecutionGraph) -> None:
        self._plan = plan
        running = {chain.id for chain in plan.running_chains}
        self._channels = [
            channel
            for link in plan.links
            if link.target in running
            for channel in plan.channels(link)
        ]
        self._upstream: dict[Task, set[Task]] = {task: set() for task in plan.tasks()}
        for channel in self._channels:
            self._upstream[self.receiver(channel)].add(self.sender(channel))
        self._reasons: dict[int, str | None] = {}

    def sender(self, channel: ChannelId) -> Task:
        """Return the task that sends into a channel."""
        return self._plan.links[channel.link].source, channel.source

    def receiver(self, channel: ChannelId) -> Task:
        """Return the task that receives from a channel."""
        return self._plan.links[channel.link].target, channel.target

    def with_upstream(self, tasks: Iterable[Task]) -> frozenset[Task]:
        """Return some tasks and all tasks whose records reach them."""
        found: set[Task] = set()
        left = [*tasks]
        while left:
            task = left.pop()
            if task not in found:
                found.add(task)
                left += self._upstream[task]
        return frozenset(found)

    def why_not(self, restarted: Iterable[Task]) -> str | None:
        """Return why tasks cannot restart while the others continue; None if they can.

        Arguments:
            restarted: the tasks, with all tasks upstream of them.
        """
        restarted = frozenset(restarted)
        if restarted.issuperset(self._upstream):
            return "each task sends records to the failed one"
        for channel in self._channels:
            crosses = self.sender(channel) in restarted and self.receiver(channel) not in restarted
            chain = self._plan.links[channel.link].source
            if crosses and (reason := self._why_other_records(chain)) is not None:
                return reason
        return None

    def sends_again(self, restarted: Iterable[Task]) -> frozenset[Task]:
        """Return the sources among restarted tasks whose records others have processed."""
        restarted = frozenset(restarted)
        crossing = [
            self.sender(channel)
            for channel in self._channels
            if self.sender(channel) in restarted and self.receiver(channel) not in restarted
        ]
        chains = self._plan.chains
        return frozenset(task for task in self.with_upstream(crossing) if chains[task[0]].is_source)

    def _why_other_records(self, chain: int) -> str | None:
        """Return why tasks of a chain may emit other records after a restart; None if they do not.

        The order of records from several channels is known only from a log. A single channel has
        one order.
        """
        if chain not in self._reasons:
            self._reasons[chain] = self._find_reason(chain)
        return self._reasons[chain]

    def _find_reason(self, chain: int) -> str | None:
        found = self._plan.chains[chain]
        # This also ends the recursion, since each cycle of chains is in a loop.
        if self._plan.loop_of(chain) is not None:
            return f"{found.name} is in a loop, so the order of its records may change"
        inputs = [one for one in self._channels if self.receiver(one)[0] == chain]
        if chain not in self._plan.logged:
            for node in found.walk():
                if not node.operator.spec.replays:
                    return f"the order of the records of {node.operator.name} may change"
            if len(inputs) > found.parallelism:
                for node in found.walk():
                    if not node.operator.spec.can_repeat_steps:
                        generator = f"the watermark generator of {node.operator.name}"
                        return f"{generator} has a state of its own"
                return f"the order of the records that reach {found.name} may change"
        sources = (self._plan.links[channel.link].source for channel in inputs)
        return next(filter(None, map(self._why_other_records, sources)), None)
