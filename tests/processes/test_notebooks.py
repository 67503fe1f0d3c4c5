"""Functions and classes of notebook cells, and of a program without a file, work in workers."""

from __future__ import annotations

import subprocess
import sys

#: Runs cells as the kernel of a notebook does: in a module `__main__` without a file, and inside of
#: a running event loop.
KERNEL = """
import asyncio, sys, types

main = types.ModuleType("__main__")
main.__dict__["__builtins__"] = __builtins__
sys.modules["__main__"] = main

async def run(cells):
    for number, cell in enumerate(cells, 1):
        exec(compile(cell, f"<ipython-input-{number}>", "exec"), main.__dict__)

asyncio.run(run(CELLS))
"""
DEFINITIONS = """
from dataclasses import dataclass
from typing import NamedTuple
from penstock import *

@dataclass(frozen=True)
class Visit:
    user: str
    seconds: int

class Total(NamedTuple):
    user: str
    seconds: int

FACTOR = 10

def scaled(visit):
    return Visit(visit.user, visit.seconds * FACTOR)

class Sum(KeyedProcessFunction):
    def open(self, context):
        self.sum = context.get_state(ValueStateDescriptor("sum"))

    def process_element(self, visit, ctx):
        self.sum.update((self.sum.value() or 0) + visit.seconds)
        yield Total(visit.user, self.sum.value())

env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
visits = env.from_collection([Visit("ada", 1), Visit("alan", 2), Visit("ada", 3)])
"""
TOTALS = """
print(sorted(visits.map(scaled).key_by("user").process(Sum()).take(9)))
"""
#: Other classes of the same names.
REDEFINED = """
@dataclass(frozen=True)
class Visit:
    user: str
    page: str

class Sum(KeyedProcessFunction):
    def process_element(self, visit, ctx):
        yield Total(visit.page, -1)

pages = env.from_collection([Visit("ada", "start")])
print(pages.map(lambda v: Visit(v.user, v.page * 2)).key_by("user").process(Sum()).take(9))
"""
SUMS = (
    "[Total(user='ada', seconds=10), Total(user='ada', seconds=40), Total(user='alan', seconds=20)]"
)
LATER = "[Total(user='startstart', seconds=-1)]"


def _run(program: str, *arguments: str) -> list[str]:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, input=program, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_cells_of_a_notebook_define_functions_and_records() -> None:
    cells = [DEFINITIONS, TOTALS, REDEFINED]
    program = KERNEL.replace("CELLS", repr(cells))
    assert _run(program, "-") == [SUMS, LATER]


def test_a_program_from_standard_input_and_one_from_an_argument() -> None:
    assert _run(DEFINITIONS + TOTALS, "-") == [SUMS]
    assert _run("", "-c", DEFINITIONS + TOTALS) == [SUMS]
