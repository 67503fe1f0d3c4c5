"""Specialize the loops of operators for the user functions that they call.

Other packages import only the names of this module:

* `specialize` compiles a loop again, and replaces calls of user functions by their bodies.
* `specialize_routing` generates one loop that runs a map or flat map and routes its output records.
* `without_times` and `with_swapped_arguments` derive variants of a loop that is written once.
* `raised_by_generated_code` returns whether generated code raised an error. The caller then runs
  the plain loop for that record again, so that the traceback shows the user's function.
* `set_enabled` switches code generation on or off.

`specialize` and `specialize_routing` return None for functions that they cannot inline. The caller
then runs its plain loop. So a job gives the same results and errors with code generation on and
off.

`docs/inside/decisions/022-inlined-expressions.md` has the reasons and the figures.
"""

from __future__ import annotations

from penstock.runtime.codegen.routing import Layout, RoutingLoop, specialize_routing
from penstock.runtime.codegen.specialization import raised_by_generated_code, specialize
from penstock.runtime.codegen.switch import is_enabled, set_enabled
from penstock.runtime.codegen.variants import with_swapped_arguments, without_times

__all__ = [
    "Layout",
    "RoutingLoop",
    "is_enabled",
    "raised_by_generated_code",
    "set_enabled",
    "specialize",
    "specialize_routing",
    "with_swapped_arguments",
    "without_times",
]
