"""Specialize the loops of operators for the user functions that they call.

The face of the package is this module:

* `specialize` compiles a loop again, with the bodies of user functions in the place of their calls.
* `specialize_routing` does so for a map or flat map together with the routing of what it emits.
* `raised_by_generated_code` says whether to run the plain loop again, for an error with the user's
  own traceback.
* `set_enabled` switches all of that off.

Each of the first two returns None for functions that it cannot inline, and the caller then runs
its plain loop. So a job gives the same results and errors with code generation on and off.
"""

from __future__ import annotations

from penstock.runtime.codegen.routing import Layout, RoutingLoop, specialize_routing
from penstock.runtime.codegen.specialization import raised_by_generated_code, specialize
from penstock.runtime.codegen.switch import is_enabled, set_enabled

__all__ = [
    "Layout",
    "RoutingLoop",
    "is_enabled",
    "raised_by_generated_code",
    "set_enabled",
    "specialize",
    "specialize_routing",
]
