"""Define `Configuration`: settings by the keys of Flink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from penstock.dataflow.arguments.pyflink_names import PyFlinkNames
from penstock.dataflow.type_variables import UserValue


class Configuration(PyFlinkNames):
    """Settings by the keys of Flink. (PyFlink: `Configuration`.)

    `docs/reference/pyflink.md` lists the keys that have a meaning in Penstock. Other keys are noted
    in the log when the configuration is applied.

    Arguments:
        settings: the first settings; none if None.

    Examples:
        >>> config = Configuration().set_string("execution.checkpointing.interval", "10 s")
        >>> env = StreamExecutionEnvironment.get_execution_environment(config)
        >>> env.config.checkpoint_interval_seconds
        10.0
    """

    _missing: ClassVar[Mapping[str, str]] = {"parse_jars_value": "there is no JVM, and no jars"}

    def __init__(self, settings: Configuration | Mapping[str, object] | None = None) -> None:
        self._settings: dict[str, UserValue] = {}
        if isinstance(settings, Configuration):
            self.add_all(settings)
        elif settings is not None:
            self._settings.update(settings)

    def set(self, key: str, value: object) -> Configuration:
        """Set the value of a key to a string, a number or a boolean."""
        self._settings[key] = value
        return self

    def set_string(self, key: str, value: str) -> Configuration:
        """Set the value of a key to a string."""
        return self.set(key, str(value))

    def set_integer(self, key: str, value: int) -> Configuration:
        """Set a key to a whole number."""
        return self.set(key, int(value))

    def set_float(self, key: str, value: float) -> Configuration:
        """Set a key to a number."""
        return self.set(key, float(value))

    def set_boolean(self, key: str, value: bool) -> Configuration:
        """Set a key to True or False."""
        return self.set(key, bool(value))

    def set_bytearray(self, key: str, value: bytearray) -> Configuration:
        """Set a key to bytes."""
        return self.set(key, bytearray(value))

    def get(self, key: str, default_value: object = None) -> UserValue:
        """Return the value of a key, or a default if it is not set."""
        return self._settings.get(key, default_value)

    def get_string(self, key: str, default_value: str | None = None) -> str | None:
        """Return the value of a key as a string."""
        value = self._settings.get(key)
        return default_value if value is None else str(value)

    def get_integer(self, key: str, default_value: int = 0) -> int:
        """Return the value of a key as a whole number."""
        return int(self._settings.get(key, default_value))

    def get_float(self, key: str, default_value: float = 0.0) -> float:
        """Return the value of a key as a number."""
        return float(self._settings.get(key, default_value))

    def get_boolean(self, key: str, default_value: bool = False) -> bool:
        """Return whether the value of a key is True, or the text `true`."""
        return str(self._settings.get(key, default_value)).strip().lower() == "true"

    def get_bytearray(self, key: str, default_value: bytearray | None = None) -> bytearray | None:
        """Return the value of a key as bytes."""
        value = self._settings.get(key)
        return default_value if value is None else bytearray(value)

    def contains_key(self, key: str) -> bool:
        """Return whether a key is set."""
        return key in self._settings

    def key_set(self) -> frozenset[str]:
        """Return all keys that are set."""
        return frozenset(self._settings)

    def remove_config(self, key: str) -> bool:
        """Remove a key. Return whether it was set."""
        return self._settings.pop(key, None) is not None

    def add_all(self, other: Configuration, prefix: str = "") -> Configuration:
        """Set all keys of another configuration.

        Arguments:
            other: the other configuration.
            prefix: a string that is put before each key.
        """
        self._settings.update({prefix + key: value for key, value in other._settings.items()})
        return self

    def add_all_to_dict(self, target_dict: dict[str, UserValue]) -> None:
        """Add all keys and their values to a dict."""
        target_dict.update(self._settings)

    @staticmethod
    def from_dict(config_dict: Mapping[str, object]) -> Configuration:
        """Return a configuration with the keys and values of a dict."""
        return Configuration(config_dict)

    @staticmethod
    def parse_list_value(value: str) -> list[str]:
        """Return the items of a list that is written `a;b`, or `[a, b]`."""
        text = value.strip()
        if text.startswith("[") and text.endswith("]"):
            return [item.strip() for item in text[1:-1].split(",") if item.strip()]
        return [item.strip() for item in text.split(";") if item.strip()]

    def to_dict(self) -> dict[str, str]:
        """Return all keys and their values as texts."""
        return {key: str(value) for key, value in self._settings.items()}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Configuration) and other._settings == self._settings

    def __hash__(self) -> int:
        return hash(frozenset(self.to_dict().items()))

    def __repr__(self) -> str:
        return f"Configuration({self._settings!r})"
