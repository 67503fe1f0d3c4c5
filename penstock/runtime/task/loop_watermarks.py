"""Decide when a watermark advances inside of a loop, and when it may leave the loop.

A loop is a strongly connected component of the graph of tasks. A watermark W from outside must wait
until no record with a timestamp of W or earlier is left in the loop. There are two watermarks:

* *inside*: the watermark of the tasks of the loop. It advances to W when no record with a timestamp
  ≤ W that entered the loop is left in it. Timers and windows in the loop then fire.
* *behind*: the watermark on the edges that leave the loop. It advances to W when, in addition, no
  record is left that this firing has emitted with a timestamp ≤ W.

`docs/guides/cycles.md` contains the rule with its proof. Without its back-edges, a loop is acyclic.
Its *first* tasks are those without a regular input from inside of the loop. Waves of *probes*
travel through the loop in order with its records, and block nothing. A task takes part in wave k,
or *cuts*, when it has taken probe k from all its regular inputs inside of the loop, and probe k - 1
from all its back-edges. It then sends probe k on all its outputs inside of the loop.

Probes collect four minima: the watermark from outside, the smallest timestamp that was sent over a
back-edge since the sender's last cut, and the watermarks *inside*, all three as they were at the
cuts of the first wave of a *round*. A round has as many waves as a probe needs to come from any
task to all first tasks. After a round, each first task knows the minima over all tasks:

    inside := max(inside, min(outside, lowest - 1))
    behind := max(behind, min(inside at the cuts, lowest - 1))

The first tasks send the watermark *inside* in front of the probes of the next round. These also
bring the watermark *behind* to the other tasks. At each cut, a task whose watermark *inside* is
ahead of *behind* fires the timers that records have set since the last cut.

Rounds follow one another until *behind* has reached *outside*. Then the loop is at rest. When a
watermark from outside advances, its task requests a wave. The request goes to all first tasks,
because a task behind two of them waits for the probes of both.

A restored task begins at wave 0. Probes are not part of snapshots, because a new wave collects the
same values. Nothing here does I/O: events are calls, and each call returns commands.

`docs/inside/decisions/043-watermarks-in-loops.md` has the reasons and the figures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace

from penstock.dataflow.errors import ProtocolError
from penstock.dataflow.time.watermark import MAX_WATERMARK, MIN_WATERMARK
from penstock.runtime.network.loop_probe import NOTHING, LoopProbe, ProbeRequest


@dataclass(frozen=True)
class AdvanceInside:
    """Fire timers and windows up to a watermark, and send it on the regular edges inside.

    Then call `LoopWatermarks.fired`, before any other event.
    """

    timestamp: int


@dataclass(frozen=True)
class ReleaseBehind:
    """Send a watermark on the edges that leave the loop."""

    timestamp: int


@dataclass(frozen=True)
class SetIdle:
    """Send a watermark status on the edges that leave the loop, and on the regular edges inside."""

    idle: bool


@dataclass(frozen=True)
class SendProbe:
    """Send a probe on all edges inside of the loop, with the back-edges."""

    probe: LoopProbe


@dataclass(frozen=True)
class SendRequest:
    """Send a request on all edges inside of the loop, with the back-edges."""

    request: ProbeRequest


LoopTimeCommand = AdvanceInside | ReleaseBehind | SetIdle | SendProbe | SendRequest


class LoopWatermarks:
    """The part that one task plays in the waves of its loop.

    Arguments:
        regular: the input channels from inside of the loop that are not back-edges.
        back_edges: the input channels that are back-edges.
        waves: the number of waves in a round.
        own_time: whether the event time of the task comes from an assigner inside of the loop.
        only_first: whether the task is the only first task of its loop.
    """

    def __init__(
        self,
        regular: Iterable[Hashable],
        back_edges: Iterable[Hashable],
        waves: int,
        own_time: bool = False,
        only_first: bool = False,
    ) -> None:
        self.regular = {channel: deque[LoopProbe]() for channel in regular}
        self.back_edges = {channel: deque[LoopProbe]() for channel in back_edges}
        self.waves = waves
        self.own_time, self.only_first = own_time, only_first
        #: The number of the last wave in which the task has taken part.
        self.wave = 0
        #: The watermark of the task, in milliseconds since the epoch.
        self.inside = MIN_WATERMARK
        #: The watermark on the edges that leave the loop, in milliseconds since the epoch.
        self.behind = MIN_WATERMARK
        #: Whether no watermarks are expected until an input from outside is active again.
        self.idle = False
        #: The smallest timestamp that was sent over a back-edge since the last cut.
        self.lowest = NOTHING
        #: The highest number of a request that the task knows.
        self.requested = -1
        #: The minima of this round, as far as they are known.
        self.known = LoopProbe(0)
        #: Whether the task is between the beginning and the end of a cut.
        self.cutting = False
        #: Whether the first task has used the minima of the round.
        self.judged = True
        self._outside = (MIN_WATERMARK, False)
        if not self.regular and not self.back_edges:
            raise ProtocolError("a task of a loop has no input from inside of the loop")

    @property
    def first(self) -> bool:
        """Return whether the task begins waves."""
        return not self.regular

    # ---- events

    def outside_changed(self, watermark: int, idle: bool) -> list[LoopTimeCommand]:
        """Handle a new watermark or a new status of the inputs from outside of the loop.

        Arguments:
            watermark: the minimum over these inputs; `MAX_WATERMARK` if all have ended.
            idle: whether all inputs that have not ended are idle.
        """
        if (watermark, idle) == self._outside:
            return []
        self._outside = (watermark, idle)
        return self._request(self.wave)

    def no_outside(self) -> None:
        """Record that the task has no input from outside of the loop."""
        self._outside = (MAX_WATERMARK, False)

    def inside_advanced(self, watermark: int) -> None:
        """Record that the watermark of the task has advanced, through its regular inputs."""
        self.inside = max(self.inside, watermark)

    def sent_back(self, lowest: int) -> None:
        """Record that records were sent over a back-edge.

        Arguments:
            lowest: the smallest of their timestamps, in milliseconds since the epoch.
        """
        self.lowest = min(self.lowest, lowest)

    def request_arrived(self, request: ProbeRequest) -> list[LoopTimeCommand]:
        """Handle a request from inside of the loop."""
        return self._request(request.after)

    def probe_arrived(self, channel: Hashable, probe: LoopProbe) -> list[LoopTimeCommand]:
        """Handle a probe that was taken from an input channel."""
        queue = self.regular.get(channel)
        if queue is None:
            queue = self.back_edges.get(channel)
        if queue is None or self.cutting:
            raise ProtocolError(f"{probe} on {channel}: {self._describe()}")
        queue.append(probe)
        return self._proceed()

    def fired(self) -> list[LoopTimeCommand]:
        """Handle that `AdvanceInside` is done: end the cut."""
        if not self.cutting:
            raise ProtocolError(f"no cut has begun: {self._describe()}")
        self.cutting = False
        if self._begins_round(self.wave):
            self.known = self._own()
        probes = [queue.popleft() for queue in self.regular.values()]
        for probe in probes:
            self.known = self.known.covering(probe)
        behind = min((probe.behind for probe in probes), default=self.behind)
        if self.wave > 1:
            for queue in self.back_edges.values():
                probe = queue.popleft()
                if not self._begins_round(self.wave):
                    self.known = self.known.covering(probe)
        self.lowest, self.judged = NOTHING, False
        commands: list[LoopTimeCommand] = []
        if behind > self.behind:
            self.behind = behind
            commands.append(ReleaseBehind(behind))
        self.known = replace(self.known, wave=self.wave, behind=behind)
        commands.append(SendProbe(self.known))
        return [*commands, *self._proceed()]

    # ---- waves

    def _begins_round(self, wave: int) -> bool:
        return (wave - 1) % self.waves == 0

    def _own(self) -> LoopProbe:
        """Return the task's own values at this cut."""
        watermark, idle = self._outside
        ended = watermark == MAX_WATERMARK
        return LoopProbe(
            self.wave,
            outside=NOTHING if idle or ended else watermark,
            idle=watermark if idle and not ended else None,
            lowest=self.lowest,
            inside=NOTHING if self.own_time else self.inside,
        )

    def _request(self, after: int) -> list[LoopTimeCommand]:
        if after <= self.requested:
            return []
        self.requested = after
        forward = [] if self.only_first else [SendRequest(ProbeRequest(after))]
        return [*forward, *self._proceed()]

    def _proceed(self) -> list[LoopTimeCommand]:
        """Begin the next cut if all probes that it needs have arrived."""
        if not self._complete():
            return []
        commands: list[LoopTimeCommand] = []
        if self.first and self._begins_round(self.wave + 1):
            again = False
            if not self.judged:
                commands, again = self._judge()
            if not (again or self._wanted()):
                return commands
        self.wave += 1
        self.cutting = True
        if self.inside > self.behind and not self.own_time:
            return [*commands, AdvanceInside(self.inside)]
        return [*commands, *self.fired()]

    def _complete(self) -> bool:
        """Return whether all probes that the next cut needs have arrived."""
        back = self.wave == 0 or all(self.back_edges.values())
        return not self.cutting and back and all(self.regular.values())

    def _wanted(self) -> bool:
        """Return whether a request makes a first task begin another round."""
        return self.requested >= max(0, self.wave - self.waves + 1)

    def _judge(self) -> tuple[list[LoopTimeCommand], bool]:
        """Use the minima of a round, and return whether another round must follow."""
        self.judged = True
        known = self.known
        for queue in self.back_edges.values():
            known = known.covering(queue[0])
        quiet = known.lowest - 1
        all_idle = known.outside == NOTHING and known.idle is not None
        goal = known.inside
        if known.idle is not None if all_idle else known.outside < NOTHING:
            outside = known.idle if all_idle else known.outside
            assert outside is not None
            goal = max(goal, outside)
            self.inside = max(self.inside, min(outside, quiet))
        settled = min(known.inside, quiet)
        commands: list[LoopTimeCommand] = []
        again = settled < goal
        if settled > self.behind:
            self.behind, again = settled, True
            commands.append(ReleaseBehind(settled))
        if all_idle and not self.idle:
            rests = not again and known.lowest == NOTHING
            self.idle, again = rests, again or not rests
            if rests:
                commands.append(SetIdle(True))
        elif self.idle and not all_idle:
            self.idle = False
            commands.insert(0, SetIdle(False))
        return commands, again

    def _describe(self) -> str:
        return f"wave {self.wave}, inside {self.inside}, behind {self.behind}, {self.known}"


@dataclass(frozen=True)
class LoopPlace:
    """Describes the place of a task in its loop, for event time.

    Arguments:
        outside: the input channels from outside of the loop.
        regular: the input channels from inside of the loop that are not back-edges.
        watermarks: decides when a watermark advances inside of the loop, and when it may leave it.
    """

    outside: tuple[Hashable, ...]
    regular: tuple[Hashable, ...]
    watermarks: LoopWatermarks
