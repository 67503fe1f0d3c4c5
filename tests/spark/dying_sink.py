"""A sink whose committer kills its own process, once at each point that a folder names."""

import os
import signal
from pathlib import Path

from penstock.connectors.spark.sink.table_sink import SparkTableSink

#: Where a committer can die: on the way in, with the links made, with the catalog told, with the
#: ledger written, and done but not yet recorded by the engine.
POINTS = ["entered", "linked", "told", "written", "done"]
#: … and around files that replace others.
REPLACING = ["before replacing", "replaced"]


class DyingSink(SparkTableSink):
    """Dies at the points that are names of files in `deaths`; each file is removed before."""

    deaths: Path

    def create_committer(self):
        committer = super().create_committer()
        committer.__class__ = dying(type(committer))
        committer.deaths = self.deaths
        return committer


def dying(base):
    """The committer class, with points to die at."""

    class Dying(base):
        deaths: Path

        def _point(self, name):
            path = self.deaths / name
            if path.exists():
                path.unlink()
                os.kill(os.getpid(), signal.SIGKILL)

        def commit(self, committables):
            self._point("entered")
            super().commit(committables)
            self._point("done")

        def link(self, committables):
            super().link(committables)
            self._point("linked")

        def update_catalog(self, *arguments):
            super().update_catalog(*arguments)
            self._point("told")

        def abandon(self, committables):
            self._point("written")
            super().abandon(committables)

        def replace_files(self, path, ledger):
            self._point("before replacing")
            done = super().replace_files(path, ledger)
            self._point("replaced")
            return done

    return Dying
