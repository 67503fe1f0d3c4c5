"""Report programs that built a job and never executed it.

Python ends such a program without an error. A message is printed when the process exits, if the
program ran as a script: `python job.py`. Tests, notebooks and the command line report such things
by themselves. A program that ends with an uncaught error other than `SystemExit`, or that draws its
execution plan, is not reported either.
"""

from __future__ import annotations

import atexit
import sys
import weakref

from penstock.dataflow.graph.job_graph import JobGraph
from penstock.dataflow.nested_jobs import current_role
from penstock.dataflow.program import current_options

#: Modules of tools that build programs on purpose without executing them.
_TOOLS = ("pytest", "unittest", "IPython", "doctest")


class Executions:
    """Remembers which operators of one environment were executed.

    Arguments:
        graph: the graph of the environment, which still grows.
    """

    def __init__(self, graph: JobGraph) -> None:
        self._graph = graph
        #: The ids of the operators that were part of an execution, or could have been.
        self.executed: set[int] = set()
        #: The ids of the operators that were compiled, for an execution or for a drawing.
        self.compiled: set[int] = set()

    def pending(self) -> set[int]:
        """Return the ids of the operators that the next execution runs."""
        return {operator.id for operator in self._graph.operators} - self.executed

    def report(self) -> str | None:
        """Return a message if sinks, or the whole program, wait for an execution; else None."""
        pending = self.pending() - self.compiled
        waiting = [one for one in self._graph.operators if one.id in pending]
        sinks = [repr(one.name) for one in waiting if one.spec.is_sink]
        if not waiting or ((self.executed or self.compiled) and not sinks):
            return None
        names = ", ".join(sinks) or repr(waiting[-1].name)
        return (
            f"penstock: the program has ended, and {names} was never executed: the program must "
            f"call env.execute(), or execute_and_collect() on a stream"
        )


_executions: weakref.WeakKeyDictionary[object, Executions] = weakref.WeakKeyDictionary()
#: The reports of environments that do not exist any more.
_reports: list[str] = []


def watch(environment: object, executions: Executions) -> None:
    """Report an environment when the process exits, if the process runs a script."""
    if _is_script():
        atexit.unregister(_print_reports)  # It is registered once.
        atexit.register(_print_reports)
    _executions[environment] = executions
    weakref.finalize(environment, _keep_report, executions).atexit = False


def take_reports() -> list[str]:
    """Return the reports of all environments of this process, and forget the environments."""
    reports = [*_reports, *filter(None, (one.report() for one in _executions.values()))]
    _reports.clear()
    _executions.clear()
    return reports


def _keep_report(executions: Executions) -> None:
    if (report := executions.report()) is not None and report not in _reports:
        _reports.append(report)


def _print_reports() -> None:
    failed = hasattr(sys, "last_value") or hasattr(sys, "last_exc")
    if not failed and not any(tool in sys.modules for tool in _TOOLS):
        for report in take_reports():
            print(report, file=sys.stderr)


def _is_script() -> bool:
    """Return whether this process runs a program directly, and not by a command line."""
    # When the process exits, the module has no name of its file any more.
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None) or ""
    package = getattr(getattr(main, "__spec__", None), "name", "").partition(".")[0]
    is_file = file.endswith(".py") and package != "penstock" and not sys.flags.interactive
    return is_file and current_options().executor is None and current_role() is None
