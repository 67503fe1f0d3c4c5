"""Define `OperatorSpec`, which says everything that the engine must know about an operator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum

from penstock.dataflow.output_tag import OutputTag
from penstock.dataflow.type_variables import UserFunction, UserValue


class Role(Enum):
    """The place of an operator in a program.

    A feedback is the place of a stream whose producers are added later. It never runs.
    """

    SOURCE = "source"
    TRANSFORMATION = "transformation"
    SINK = "sink"
    FEEDBACK = "feedback"


@dataclass(frozen=True)
class OperatorSpec:
    """Describes an operator to the compiler and the runtime.

    `specs.py` has the specifications of Penstock's operators, and
    `penstock.runtime.operators.registry` has their builders. Another package makes a specification
    with builders of its own, and adds the operator with `DataStream.transform`:

        MEDIAN = OperatorSpec("example.median", keyed=True, build=keyed(MedianOperator))
        stream.key_by(user).transform("Median", MEDIAN, amount)

    Arguments:
        name: the kind of operator. It is in snapshots, whose state goes only to the same kind.
        role: the place of the operator in a program.
        keyed: whether the operator has keyed state.
        two_inputs: whether the operator has two inputs.
        starts_chain: whether the operator is always the first one of its chain. An operator with
            two inputs is.
        side_outputs: whether its function may emit records to side outputs.
        own_state: whether the operator itself has operator state, besides that of its function.
        keeps_type: whether the operator emits records of the type that it reads.
        needs_timestamps: whether its records need timestamps.
        event_time_only: whether no variant of the operator works without event time.
        waits_for_watermarks: whether the operator emits nothing before a watermark comes.
        gives_timestamps: whether the records that it emits have timestamps.
        sets_watermarks: whether the watermarks behind the operator are its own.
        replays: whether the operator emits the same records in the same order when it reads the
            same records again, if its function is deterministic.
        repeats_steps: whether it does so when it also reads the records of its channels, and the
            watermarks between them, in the same order, and its timers fire between the same
            records. An operator that `replays` does, unless it emits watermarks of its own: then
            it must emit the same ones.
        by_batch: whether what the operator emits depends on where its batches begin and end. Then
            it can repeat its steps only with the same batches.
        late_tags: the tags of the side outputs for late records; None for records that are dropped.
        source_tags: the tags of the side outputs of a source.
        sorted_inputs: the inputs that batch mode sorts by key and event time, so that the operator
            gets one key after the other.
        in_batch_mode: a function that returns the user's function as batch mode runs it; None if
            batch mode runs the same one.
        with_keys: the specification of the operator that runs the same function with keyed state;
            None if there is none.
        former_name: the kind in derived uids, if it is not `name`.
        build: the builder of an operator from another package.
        build_final: the builder for batch mode. With None, batch mode adapts what `build` returns.
    """

    name: str
    role: Role = Role.TRANSFORMATION
    keyed: bool = False
    two_inputs: bool = False
    starts_chain: bool = False
    side_outputs: bool = False
    own_state: bool = False
    keeps_type: bool = False
    needs_timestamps: bool = False
    event_time_only: bool = False
    waits_for_watermarks: bool = False
    gives_timestamps: bool = False
    sets_watermarks: bool = False
    replays: bool = False
    repeats_steps: bool = False
    by_batch: bool = False
    late_tags: tuple[OutputTag | None, ...] = ()
    source_tags: tuple[OutputTag, ...] = ()
    sorted_inputs: tuple[int, ...] = ()
    in_batch_mode: Callable[[UserValue], object] | None = None
    with_keys: OperatorSpec | None = None
    former_name: str | None = None
    build: UserFunction | None = None
    build_final: UserFunction | None = None

    @property
    def is_source(self) -> bool:
        """Whether the operator is a source."""
        return self.role is Role.SOURCE

    @property
    def is_sink(self) -> bool:
        """Whether the operator is a sink."""
        return self.role is Role.SINK

    @property
    def is_feedback(self) -> bool:
        """Whether the operator is a feedback, which never runs."""
        return self.role is Role.FEEDBACK

    @property
    def replaces_watermarks(self) -> bool:
        """Whether the operator emits its own watermarks in place of those that it reads."""
        return self.sets_watermarks and not self.is_source

    @property
    def can_repeat_steps(self) -> bool:
        """Whether the operator emits the same again in a task that repeats its steps."""
        return self.repeats_steps or (self.replays and not self.replaces_watermarks)

    @property
    def begins_chain(self) -> bool:
        """Whether the operator is always the first one of its chain."""
        return self.starts_chain or self.two_inputs

    @property
    def name_in_uids(self) -> str:
        """The kind of operator in derived uids."""
        return self.former_name or self.name

    def without_code(self) -> OperatorSpec:
        """Return the specification without its functions, for the execution graph."""
        return replace(
            self,
            late_tags=(),
            source_tags=(),
            in_batch_mode=None,
            with_keys=None,
            build=None,
            build_final=None,
        )
