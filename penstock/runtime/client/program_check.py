"""Check whether a program can go on from a snapshot, without running it.

The graph and the record classes are compared as at a resume. For the states, each operator with
state is opened here, with tables that have the names and kinds of the snapshot but no entries. So
`open` of the user's functions runs. Sources and sinks are not opened: they would connect to other
systems, and might fence the running job.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from penstock.dataflow.config import RuntimeExecutionMode
from penstock.dataflow.errors import GraphError, JobError
from penstock.dataflow.graph.compile import compile_graph
from penstock.dataflow.graph.execution_graph import ExecutionGraph, OperatorInfo
from penstock.dataflow.graph.job_graph import key_migration
from penstock.dataflow.graph.keys import canonical
from penstock.dataflow.graph.operator_names import input_names
from penstock.runtime.control.job_code import JobCode, pack, unpack
from penstock.runtime.jobmanager.snapshots.graph_differences import graph_differences
from penstock.runtime.jobmanager.snapshots.record_classes import RecordClasses
from penstock.runtime.operators.building import OperatorPlace
from penstock.runtime.operators.context import OperatorContext
from penstock.runtime.operators.registry import build_operator
from penstock.runtime.serialization.codec import Codec
from penstock.runtime.serialization.type_registry import TypeRegistry
from penstock.runtime.user_code.errors import to_job_error
from penstock.snapshot.coordination.graph_compatibility import edges_in_flight
from penstock.snapshot.coordination.renamed_operators import with_present_uids
from penstock.snapshot.coordination.state_compatibility import (
    compare_states,
    kinds_of_operator_states,
)
from penstock.snapshot.metadata.handles import KeyedHandle, OperatorHandle
from penstock.snapshot.metadata.manifest import Manifest
from penstock.snapshot.state import KeyedBackend
from penstock.snapshot.state.operator_state import (
    OperatorStateBackend,
    read_operator_state,
    redistribute,
)


class StateOutcome(Enum):
    """The outcomes for the state of an operator, or the records of a class, from best to worst.

    KEPT: it goes on as it is.
    RESCALED: it is divided among another number of subtasks.
    MIGRATED: values or keys of older versions are converted.
    NEW: it is not in the snapshot, and starts empty.
    UNCHECKED: it is known only when the job runs.
    DROPPED: values would be lost, which the user must allow.
    LOST: records in flight would be lost, which the user must allow.
    REFUSED: the program cannot go on from the snapshot.
    """

    KEPT = "kept"
    RESCALED = "rescaled"
    MIGRATED = "migrated"
    NEW = "new"
    UNCHECKED = "unchecked"
    DROPPED = "dropped"
    LOST = "records lost"
    REFUSED = "refused"


@dataclass(frozen=True)
class CheckedOperator:
    """The result for one operator or record class.

    Arguments:
        uid: the uid of the operator, or the name of the record class.
        name: the name of the operator, or the kind of the class.
        outcome: what becomes of its state.
        reasons: explanations for the user, which may be none.
    """

    uid: str
    name: str
    outcome: StateOutcome
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProgramCheck:
    """The result of a check.

    Arguments:
        operators: a result for each operator with state, in the program or in the snapshot, and for
            each record class that has changed.
    """

    operators: tuple[CheckedOperator, ...]

    def fits(self, *, allow_dropped: bool = False) -> bool:
        """Return whether the program can go on from the snapshot."""
        bad = {StateOutcome.REFUSED} if allow_dropped else {*_MUST_BE_ALLOWED, StateOutcome.REFUSED}
        return not any(one.outcome in bad for one in self.operators)


_MUST_BE_ALLOWED = (StateOutcome.DROPPED, StateOutcome.LOST)


#: Returns whether a state of an operator in the snapshot has an entry, from the uid and the name.
Holds = Callable[[str, str], bool]
#: Yields the name of a state and a key of it, for all keys of an operator in the snapshot, from its
#: uid. A key may come several times.
Keys = Callable[[str], Iterable[tuple[str, Any]]]


def check_program(
    code: JobCode, saved: Manifest, path: Path, holds: Holds, keys: Keys
) -> ProgramCheck:
    """Check whether a program can go on from a snapshot.

    Arguments:
        code: the code of the program.
        saved: the manifest of the snapshot.
        path: the folder of the snapshot.
        holds: returns whether a state has an entry there.
        keys: yields the keys of an operator there. They are read only if they are of another
            version than those of the program.

    Raises:
        GraphError: if the snapshot has both an operator and its former uid, or if a function of the
            program cannot be sent to a worker.
    """
    # Functions change when they are opened, and the caller may still run the program.
    code = unpack(pack(code))
    plan = compile_graph(code.graph, code.config, unchained=edges_in_flight(saved))
    manifest = with_present_uids(saved, plan.former_uids)
    before = {entry.uid for entry in saved.operators}
    former = {new: old for old, new in plan.former_uids.items() if old in before}
    remarks: dict[tuple[str, str], list[Remark]] = {
        (info.uid, info.name): [] for info in plan.operators if info.stateful
    }
    differences = graph_differences(plan, manifest)
    differences += RecordClasses(code.types).differences(manifest)
    for one in differences:
        remark = StateOutcome(one.verdict.value), one.reason
        remarks.setdefault((one.uid, one.name), []).append(remark)
    with tempfile.TemporaryDirectory(prefix="penstock-check-") as folder:
        states = _States(code, plan, path, holds, Path(folder))
        for info in plan.operators:
            of_operator = remarks.get((info.uid, info.name), [])
            if info.uid in former:
                of_operator.append((StateOutcome.KEPT, f"its uid was {former[info.uid]!r}"))
            handles = [one for one in manifest.handles if one.uid == info.uid]
            known = all(outcome in _STATE_KNOWN for outcome, _ in of_operator)
            if info.stateful and handles and known:
                of_operator += states.check(info, former.get(info.uid, info.uid), handles)
            if any(outcome is StateOutcome.MIGRATED for outcome, _ in of_operator):
                before_uid = former.get(info.uid, info.uid)
                of_operator += _check_keys(code, info, keys, before_uid)
    return ProgramCheck(tuple(_result(*key, found) for key, found in sorted(remarks.items())))


def _check_keys(code: JobCode, info: OperatorInfo, keys: Keys, uid: str) -> list[Remark]:
    """Return what is wrong with the keys that a program makes of those of a snapshot."""
    migration = key_migration(code.graph, info.id)
    if migration is None or migration.migrate_key is None:
        return []
    former: dict[tuple[str, Any], Any] = {}
    for state, key in keys(uid):
        try:
            new = migration.migrate_key(key)
        except Exception as error:
            text = f"its key {key!r:.200} cannot be converted: {type(error).__name__}: {error}"
            return [(StateOutcome.REFUSED, text)]
        other = former.setdefault((state, new), key)
        if migration.merge is None and other != key:
            text = (
                f"its keys {other!r:.100} and {key!r:.100} become {new!r:.100}: give its "
                f"VersionedKeySelector a function that combines them, merge=..."
            )
            return [(StateOutcome.REFUSED, text)]
    return []


#: An outcome for a part of an operator's state, and its reason.
Remark = tuple[StateOutcome, str]
_STATE_KNOWN = (StateOutcome.KEPT, StateOutcome.RESCALED, StateOutcome.MIGRATED)


def _result(uid: str, name: str, remarks: Iterable[Remark]) -> CheckedOperator:
    remarks = list(remarks)
    order = list(StateOutcome)
    worst = max((outcome for outcome, _ in remarks), key=order.index, default=StateOutcome.KEPT)
    return CheckedOperator(uid, name, worst, tuple(reason for _, reason in remarks))


class _States:
    """Compares the states that operators request with those of a snapshot.

    Arguments:
        code: the code of the program.
        plan: the execution graph of the program.
        path: the folder of the snapshot.
        holds: returns whether a state has an entry there.
        folder: a temporary folder.
    """

    def __init__(
        self, code: JobCode, plan: ExecutionGraph, path: Path, holds: Holds, folder: Path
    ) -> None:
        self._code, self._plan = code, plan
        self._path, self._holds, self._folder = path, holds, folder
        self._codec = Codec(TypeRegistry(code.types))
        self._operators = {operator.id: operator for operator in code.graph.operators}

    def check(
        self, info: OperatorInfo, former_uid: str, handles: list[OperatorHandle]
    ) -> list[Remark]:
        """Return what becomes of the states of an operator.

        Arguments:
            info: the operator.
            former_uid: its uid in the snapshot.
            handles: its handles in the snapshot.
        """
        if info.spec.is_source:
            return []
        backend = self._backend(info, [one.keyed for one in handles if one.keyed is not None])
        restored = [(table, table.name, table.version) for table in backend.tables]
        lists = self._operator_state(info, handles)
        try:
            if not self._open(info, backend, lists):
                return [(StateOutcome.UNCHECKED, "it is a sink, which only a job opens")]
        except JobError as error:
            if isinstance(error.__cause__, GraphError):
                return [(StateOutcome.REFUSED, str(error.__cause__))]
            return [(StateOutcome.UNCHECKED, f"its states are not known: {error}")]
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            return [(StateOutcome.UNCHECKED, f"it cannot be opened outside of a job: {what}")]
        remarks: list[Remark] = []
        for table, name, version in restored:
            if table.name != name:
                remarks.append((StateOutcome.KEPT, f"state {name!r} is {table.name!r} now"))
            if table.version != version:
                text = f"state {table.name!r} goes from version {version} to {table.version}"
                remarks.append((StateOutcome.MIGRATED, text))
        backend.end_opening()
        gone_lists, new_lists = lists.end_opening()
        gone = {
            table.name: table.kind.value
            for table, _, _ in restored
            if not (table.is_requested or table.is_late) and self._holds(former_uid, table.name)
        }
        new = {table.name: table.kind.value for table in backend.tables if not table.is_restored}
        gone |= kinds_of_operator_states(gone_lists)
        new |= kinds_of_operator_states(new_lists)
        remarks += [(StateOutcome.KEPT, f"state {name!r} is new") for name in new]
        differences = compare_states(info.uid, info.name, gone, new)
        return remarks + [(StateOutcome(one.verdict.value), one.reason) for one in differences]

    def _backend(self, info: OperatorInfo, handles: list[KeyedHandle]) -> KeyedBackend:
        """Return keyed state with the tables of a snapshot, and without entries."""
        backend = KeyedBackend(
            folder=self._folder / str(info.id),
            codec=self._codec,
            canonical=canonical,
            max_parallelism=self._plan.max_parallelism,
            groups=range(self._plan.max_parallelism),
        )
        for handle in handles:
            for state_id, name in enumerate(handle.states):
                backend.tables.declare_restored(handle, state_id, name)
        return backend

    def _operator_state(
        self, info: OperatorInfo, handles: list[OperatorHandle]
    ) -> OperatorStateBackend:
        lists = OperatorStateBackend(info.name, self._codec)
        before = {
            one.subtask: read_operator_state(one.operator_state, self._path)
            for one in handles
            if one.operator_state is not None
        }
        lists.restore(redistribute(before, 0, 1, rescaled=True))
        return lists

    def _open(self, info: OperatorInfo, backend: KeyedBackend, lists: OperatorStateBackend) -> bool:
        """Open an operator and close it again; return False if that might have effects."""
        operator = self._operators[info.id]
        context = OperatorContext(
            info.name,
            info.uid,
            0,
            info.parallelism,
            self._plan.max_parallelism,
            0,
            self._codec,
            backend if info.spec.keyed else None,
            operator.side_outputs,
            lists,
            job_parameters=self._code.config.job_parameters,
            inputs=input_names(self._code.graph, info.id),
        )
        batch = self._code.config.runtime_mode is RuntimeExecutionMode.BATCH
        running = build_operator(OperatorPlace(operator, context), batch=batch)
        if running.is_connector:
            return False
        try:
            running.initialize_state()
            running.open()
            running.close()
        except BaseException as error:
            raise to_job_error(error, running, []) from error
        finally:
            backend.close()
        return True
