"""The state of operators: keyed state in tables of a `KeyedBackend`, and operator state.

`state_store.py` makes them from descriptors. A state object takes the current key from its scope
(`scope.py`). Most of them use the table through cells (`cells.py`), which also let values expire.
The states of the hottest loops use the table itself.

`operator_states.py` has the operator state of functions. `checkpointed_functions.py` calls these
functions when they start and at each barrier.
"""

from __future__ import annotations

from penstock.runtime.operators.state.scope import NO_KEY, KeyScope, NamespaceScope
from penstock.runtime.operators.state.state_store import StateStore, merge_namespaces

__all__ = ["NO_KEY", "KeyScope", "NamespaceScope", "StateStore", "merge_namespaces"]
