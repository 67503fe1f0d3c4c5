"""Define `MemorySize` and `SlotSharingGroup`, with which PyFlink programs describe resources."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import total_ordering

from penstock.dataflow.errors import GraphError


@total_ordering
@dataclass(frozen=True)
class MemorySize:
    """A number of bytes. (Flink: `MemorySize`.)

    Arguments:
        bytes_size: the number of bytes.

    Raises:
        GraphError: if it is not a whole number of at least 0.

    Examples:
        >>> MemorySize.of_mebi_bytes(2).get_bytes()
        2097152
    """

    bytes_size: int = 0

    def __post_init__(self) -> None:
        if type(self.bytes_size) is not int or self.bytes_size < 0:
            raise GraphError(f"a memory size is a number of bytes, not {self.bytes_size!r}")

    @staticmethod
    def of_mebi_bytes(mebi_bytes: int) -> MemorySize:
        """Return a size of this many MiB."""
        return MemorySize(mebi_bytes << 20)

    def get_bytes(self) -> int:
        """Return the number of bytes."""
        return self.bytes_size

    def get_kibi_bytes(self) -> int:
        """Return the number of KiB, rounded down."""
        return self.bytes_size >> 10

    def get_mebi_bytes(self) -> int:
        """Return the number of MiB, rounded down."""
        return self.bytes_size >> 20

    def get_gibi_bytes(self) -> int:
        """Return the number of GiB, rounded down."""
        return self.bytes_size >> 30

    def get_tebi_bytes(self) -> int:
        """Return the number of TiB, rounded down."""
        return self.bytes_size >> 40

    def __lt__(self, other: MemorySize) -> bool:
        return self.bytes_size < other.bytes_size

    def __str__(self) -> str:
        return f"{self.bytes_size} bytes"


@dataclass(frozen=True)
class SlotSharingGroup:
    """A group of operators, with the resources that Flink reserves for it.

    (Flink: `SlotSharingGroup`.) In Penstock all operators share their slots: worker i runs subtask
    i of each operator. So a group is accepted, and has no effect. The memory of a worker is set
    with `StreamExecutionEnvironment.set_memory`.

    Arguments:
        name: the name of the group.
        cpu_cores: the number of cores; None if it is not given.
        task_heap_memory, task_off_heap_memory, managed_memory: sizes; None if they are not given.
        external_resources: the amounts of other resources, by name.

    Examples:
        >>> group = SlotSharingGroup.builder("heavy").set_cpu_cores(2.0).build()
        >>> group.get_name(), group.get_cpu_cores()
        ('heavy', 2.0)
    """

    name: str
    cpu_cores: float | None = None
    task_heap_memory: MemorySize | None = None
    task_off_heap_memory: MemorySize | None = None
    managed_memory: MemorySize | None = None
    external_resources: dict[str, float] = field(default_factory=dict, hash=False)

    @staticmethod
    def builder(name: str) -> SlotSharingGroupBuilder:
        """Return a builder for a group with this name."""
        return SlotSharingGroupBuilder(SlotSharingGroup(name))

    def get_name(self) -> str:
        """Return the name of the group."""
        return self.name

    def get_cpu_cores(self) -> float | None:
        """Return the number of cores."""
        return self.cpu_cores

    def get_task_heap_memory(self) -> MemorySize | None:
        """Return the heap memory of tasks."""
        return self.task_heap_memory

    def get_task_off_heap_memory(self) -> MemorySize | None:
        """Return the memory of tasks outside of the heap."""
        return self.task_off_heap_memory

    def get_managed_memory(self) -> MemorySize | None:
        """Return the managed memory."""
        return self.managed_memory

    def get_external_resources(self) -> dict[str, float]:
        """Return the amounts of other resources, by name."""
        return dict(self.external_resources)


class SlotSharingGroupBuilder:
    """Builds a `SlotSharingGroup`. (Flink: `SlotSharingGroup.Builder`.)

    Arguments:
        group: the group so far.
    """

    def __init__(self, group: SlotSharingGroup) -> None:
        self._group = group

    def _with(self, group: SlotSharingGroup) -> SlotSharingGroupBuilder:
        self._group = group
        return self

    def set_cpu_cores(self, cpu_cores: float) -> SlotSharingGroupBuilder:
        """Set the number of cores."""
        return self._with(replace(self._group, cpu_cores=cpu_cores))

    def set_task_heap_memory(self, task_heap_memory: MemorySize) -> SlotSharingGroupBuilder:
        """Set the heap memory of tasks."""
        return self._with(replace(self._group, task_heap_memory=task_heap_memory))

    def set_task_heap_memory_mb(self, task_heap_memory_mb: int) -> SlotSharingGroupBuilder:
        """Set the heap memory of tasks, in MiB."""
        return self.set_task_heap_memory(MemorySize.of_mebi_bytes(task_heap_memory_mb))

    def set_task_off_heap_memory(self, task_off_heap_memory: MemorySize) -> SlotSharingGroupBuilder:
        """Set the memory of tasks outside of the heap."""
        return self._with(replace(self._group, task_off_heap_memory=task_off_heap_memory))

    def set_task_off_heap_memory_mb(self, task_off_heap_memory_mb: int) -> SlotSharingGroupBuilder:
        """Set the memory of tasks outside of the heap, in MiB."""
        return self.set_task_off_heap_memory(MemorySize.of_mebi_bytes(task_off_heap_memory_mb))

    def set_managed_memory(self, managed_memory: MemorySize) -> SlotSharingGroupBuilder:
        """Set the managed memory."""
        return self._with(replace(self._group, managed_memory=managed_memory))

    def set_managed_memory_mb(self, managed_memory_mb: int) -> SlotSharingGroupBuilder:
        """Set the managed memory, in MiB."""
        return self.set_managed_memory(MemorySize.of_mebi_bytes(managed_memory_mb))

    def set_external_resource(self, name: str, value: float) -> SlotSharingGroupBuilder:
        """Set the amount of another resource."""
        resources = {**self._group.external_resources, name: value}
        return self._with(replace(self._group, external_resources=resources))

    def build(self) -> SlotSharingGroup:
        """Return the group."""
        return self._group
