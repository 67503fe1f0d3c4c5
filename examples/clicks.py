"""Number the clicks of each user, in one of four versions of the program.

    penstock submit examples/clicks.py --checkpoint-dir job --detach -- OUT [VERSION]

Version 1.1 keeps its state in another form, and converts that of version 1. Version 2 does so, and
names itself in its output. The version "broken" fails at its first record. `make demo-operate`
compares them, and upgrades a running job to them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from penstock import (
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from penstock.connectors import FileSink

USERS = 1_000
CLICKS_PER_SECOND = 5_000


class Number(KeyedProcessFunction):
    """Numbers the clicks of a user.

    Arguments:
        version: "1", "1.1", "2" or "broken".
    """

    def __init__(self, version: str) -> None:
        self.version = version

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state, which is a number in version 1, and a dict from version 1.1 on."""
        descriptor: ValueStateDescriptor[Any] = ValueStateDescriptor("clicks")
        if self.version != "1":
            descriptor = ValueStateDescriptor("clicks", version=2, migrate=to_dict)
        self.clicks = runtime_context.get_state(descriptor)

    def process_element(self, value: int, ctx: Any) -> Iterator[str]:
        """Emit the user, the number of the click, and the version that has counted it."""
        if self.version == "broken":
            raise RuntimeError("this version of the program does not work")
        if self.version == "1":
            number = (self.clicks.value() or 0) + 1
            self.clicks.update(number)
        else:
            number = (self.clicks.value() or {"count": 0})["count"] + 1
            self.clicks.update({"count": number})
        yield f"{ctx.get_current_key()} {number} {self.version.partition('.')[0]}"


def to_dict(value: int, version: int) -> dict[str, int]:
    """Convert the state of version 1."""
    del version
    return {"count": value}


def main(out: str, version: str = "1") -> None:
    """Run the job."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(200)
    clicks = env.from_generator(lambda i: i, None, CLICKS_PER_SECOND).uid("clicks")
    numbered = clicks.key_by(lambda i: f"user{i % USERS}").process(Number(version)).uid("numbers")
    numbered.sink_to(FileSink(out)).uid("out")
    env.execute("clicks")


if __name__ == "__main__":
    main(*sys.argv[1:])
