"""The driver executes the commands of the coordinator in their order."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from penstock.runtime.jobmanager.attempt.checkpoint_driver import CheckpointDriver


class Scripted:
    """A coordinator that gives some commands for each event."""

    def __init__(self, commands: dict[str, list[str]]) -> None:
        self.commands = commands
        self.handled: list[str] = []

    def handle(self, event: Any) -> list[str]:
        self.handled.append(event)
        return self.commands.get(event, [])


class Driver(CheckpointDriver):
    """A driver whose commands cause further events."""

    def __init__(self, commands: dict[str, list[str]], causes: dict[str, list[str]]) -> None:
        super().__init__(*[Mock() for _ in range(9)])
        self._coordinator: Any = Scripted(commands)
        self.causes, self.executed = causes, list[str]()

    def _execute(self, command: Any) -> None:
        if command == "fail":
            raise RuntimeError("it cannot be executed")
        self.executed.append(command)
        for event in self.causes.get(command, []):
            self.comes(event)

    def comes(self, event: Any) -> None:
        """Pass an event to the coordinator."""
        self._coordinate(event)


def test_events_that_commands_cause_wait_for_the_other_commands() -> None:
    # The end of a snapshot may request another one, with a tick that would end the one that the
    # coordinator has just begun. So its barriers must have been injected before.
    driver = Driver(
        {"published": ["complete 13", "inject 14"], "tick": ["abort 14", "inject 15"]},
        {"complete 13": ["tick", "requested"]},
    )
    driver.comes("published")
    assert driver._coordinator.handled == ["published", "tick", "requested"]
    assert driver.executed == ["complete 13", "inject 14", "abort 14", "inject 15"]


def test_an_error_leaves_no_event_behind() -> None:
    driver = Driver({"published": ["complete 13", "fail"], "tick": ["inject 14"]}, {})
    with pytest.raises(RuntimeError):
        driver.comes("published")
    driver.comes("tick")
    assert driver.executed == ["complete 13", "inject 14"]
