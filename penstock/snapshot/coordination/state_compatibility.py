"""Compare the states of an operator with those of a snapshot.

The functions of a program request their states when they are opened, so this is known only then.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from penstock.snapshot.coordination.compatibility import Difference, Verdict
from penstock.snapshot.metadata.handles import StateMode
from penstock.snapshot.metadata.state_kind import StateKind

#: The kinds of operator states, for messages.
_OPERATOR_STATES = {
    StateMode.SPLIT: "list operator",
    StateMode.UNION: "union list operator",
    StateMode.BROADCAST: "broadcast",
}


def compare_states(
    uid: str, name: str, gone: Mapping[str, str], new: Mapping[str, str]
) -> list[Difference]:
    """Return the differences of an operator's states that affect state.

    Arguments:
        uid: the uid of the operator.
        name: the name of the operator.
        gone: the states that are in the snapshot only, as a dict from name to kind.
        new: the states that are in the program only, in the same form.
    """
    return [
        Difference(uid, name, Verdict.DROPPED, _reason(state, kind, new))
        for state, kind in gone.items()
    ]


def kinds_of_operator_states(modes: Mapping[str, StateMode]) -> dict[str, str]:
    """Return the kind of each operator state, for messages."""
    return {name: _OPERATOR_STATES[mode] for name, mode in modes.items()}


def _reason(state: str, kind: str, new: Mapping[str, str]) -> str:
    if kind == StateKind.TIMER.value:
        return (
            f"there are {state!r} that have not fired, and the function has no on_timer: they "
            f"would never fire"
        )
    gone = f"state {state!r} is gone, and its values would be lost"
    alike = [name for name, one in new.items() if one == kind]
    if kind == StateKind.WINDOW.value and new:
        return (
            f"{gone}: the windows of the program are in {next(iter(new))!r}. Change the windows "
            f"back until no window is open, or give the new operator another uid"
        )
    if alike:
        near = get_close_matches(state, alike, n=1, cutoff=0)[0]
        return (
            f"{gone}: {near!r} is new. Was it renamed? Then give its descriptor aliases=[{state!r}]"
        )
    if new:
        near = get_close_matches(state, new, n=1, cutoff=0)[0]
        return f"{gone}: {near!r} is new, but is a {new[near]} state and no {kind} state"
    return f"{gone}. If the function requests it later than in open, request it in open"
