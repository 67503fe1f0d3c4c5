"""Wrong rules for watermarks in loops, which tests must find out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from penstock.dataflow.time.watermark import MIN_WATERMARK
from penstock.runtime.network.loop_probe import NOTHING, LoopProbe, ProbeRequest
from penstock.runtime.task.loop_watermarks import (
    AdvanceInside,
    LoopTimeCommand,
    LoopWatermarks,
    SendProbe,
    SendRequest,
)


class IgnoresRecords(LoopWatermarks):
    """Releases a watermark while earlier records are in the loop."""

    def sent_back(self, lowest: int) -> None:
        """Forget what was sent."""


class ForgetsRecordsOfTheFiring(LoopWatermarks):
    """Does not count the records that timers emit at a cut."""

    MORE_FIELDS = ("sent",)
    sent = NOTHING

    def sent_back(self, lowest: int) -> None:
        super().sent_back(lowest)
        if not self.cutting:
            self.sent = self.lowest

    def fired(self) -> list[LoopTimeCommand]:
        self.lowest, self.sent = self.sent, NOTHING
        return super().fired()


class ReleasesBehindWithInside(LoopWatermarks):
    """Lets a watermark leave the loop with the records that the firing has emitted."""

    def fired(self) -> list[LoopTimeCommand]:
        return [
            SendProbe(replace(c.probe, behind=self.inside)) if isinstance(c, SendProbe) else c
            for c in super().fired()
        ]


class OnlyFirstTasksHaveAnOutside(LoopWatermarks):
    """Does not wait for the watermark of inputs that enter the loop elsewhere."""

    def _own(self) -> LoopProbe:
        own = super()._own()
        return own if self.first else replace(own, outside=NOTHING, idle=None)


class DoesNotAlign(LoopWatermarks):
    """Cuts at the first probe of a wave."""

    def _complete(self) -> bool:
        if self.first:
            return super()._complete()
        for queue in (*self.regular.values(), *self.back_edges.values()):
            while queue and queue[0].wave <= self.wave - (queue in self.back_edges.values()):
                queue.popleft()
        some = next((queue[0] for queue in self.regular.values() if queue), None)
        if some is not None:
            for queue in self.regular.values():
                if not queue:
                    queue.append(replace(some))
            for queue in self.back_edges.values():
                if not queue and self.wave > 0:
                    queue.append(LoopProbe(self.wave))
        return not self.cutting and some is not None


class DoesNotWaitForBackEdges(LoopWatermarks):
    """Judges a round without the probes that come round the loop."""

    def _complete(self) -> bool:
        if self.first and self.wave and not self.cutting:
            for queue in self.back_edges.values():
                while queue and queue[0].wave < self.wave:
                    queue.popleft()
                if not queue:
                    queue.append(LoopProbe(self.wave))
        return super()._complete()


class RoundsOfOneWave(LoopWatermarks):
    """Judges a round before the minima of far tasks have come."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments[:2], 1, **more)


class DoesNotFireAgain(LoopWatermarks):
    """Leaves the timers for later that records set behind the watermark."""

    MORE_FIELDS = ("last",)
    last = MIN_WATERMARK

    def _proceed(self) -> list[LoopTimeCommand]:
        commands = super()._proceed()
        if commands and isinstance(commands[-1], AdvanceInside):
            before, self.last = self.last, commands[-1].timestamp
            if before == self.last:
                return [*commands[:-1], *self.fired()]
        return commands


class DoesNotBringTheEnd(LoopWatermarks):
    """Sends no wave that tells the other tasks what may leave the loop."""

    def _judge(self) -> tuple[list[LoopTimeCommand], bool]:
        behind = self.behind
        commands, again = super()._judge()
        goal = min(self.inside, self.known.outside)
        return commands, again and not (self.behind > behind and self.behind >= goal)


class LosesRequests(LoopWatermarks):
    """Passes no request on."""

    def request_arrived(self, request: ProbeRequest) -> list[LoopTimeCommand]:
        return super().request_arrived(request) if self.first else []


class PassesOneRequestPerWave(LoopWatermarks):
    """Takes a request for known if another was passed on since the last cut."""

    MORE_FIELDS = ("passed",)
    passed = -1

    def request_arrived(self, request: ProbeRequest) -> list[LoopTimeCommand]:
        if self.first:
            return super().request_arrived(request)
        if self.passed == self.wave:
            return []
        self.passed = self.wave
        return [SendRequest(request)]


class KeepsItsWaves(LoopWatermarks):
    """Begins waves without telling the other first tasks."""

    def _request(self, after: int) -> list[LoopTimeCommand]:
        commands = super()._request(after)
        return [c for c in commands if not (self.first and isinstance(c, SendRequest))]


class NeverRests(LoopWatermarks):
    """Begins another round after each round."""

    def _wanted(self) -> bool:
        return True
