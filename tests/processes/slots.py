"""Workers that can only start if a slot is free, so that a test can take slots away.

The interpreter of the workers is a script. It locks a file of a folder for the life of the worker,
and ends if no file is free. A lock is released by the kernel when its process has ended.
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock import StreamExecutionEnvironment

_SCRIPT = """#!{python}
import fcntl, os, sys
if "penstock.runtime.taskmanager.process" in sys.argv:
    for name in sorted(os.listdir({slots!r})):
        lock = os.open(os.path.join({slots!r}, name), os.O_RDWR)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        os.set_inheritable(lock, True)
        os.pwrite(lock, b"%-9d" % os.getpid(), 0)
        break
    else:
        sys.exit(1)
os.execv({python!r}, [{python!r}, *sys.argv[1:]])
"""


class Slots:
    """The slots of a machine.

    Arguments:
        folder: has a file for each slot.
        count: how many there are at first.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder / "slots"
        self.folder.mkdir()
        self.interpreter = folder / "python"
        self.interpreter.write_text(_SCRIPT.format(python=sys.executable, slots=str(self.folder)))
        self.interpreter.chmod(0o755)
        self.set(count)

    def set(self, count: int) -> None:
        """Let there be so many slots."""
        for path in sorted(self.folder.iterdir())[count:]:
            path.unlink()
        for number in range(count):
            (self.folder / str(number)).touch()

    def take_from(self, pid: int) -> None:
        """Take away the slot of a worker."""
        [mine] = [path for path in self.folder.iterdir() if path.read_text().strip() == str(pid)]
        mine.unlink()

    def use(self, env: StreamExecutionEnvironment) -> None:
        """Let the workers of a job need slots, and the job continue with fewer."""
        env.config.python_executable = str(self.interpreter)
        env.config.restart_reactive = True
        env.config.restart_slot_timeout_seconds = 0.3
