"""MQTT brokers as sources and sinks of a job, at least once.

This package needs the extra `penstock[mqtt]` (paho-mqtt). Each public name is imported at its first
use. To learn how the source works, begin with `deliveries.py`: it decides which messages are
acknowledged when, and knows no network. The user guide is `docs/guides/connectors/mqtt.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.connectors.lazy_names import lazy_names

if TYPE_CHECKING:
    from penstock.connectors.mqtt.broker import MqttBroker
    from penstock.connectors.mqtt.mqtt_sink import MqttSink
    from penstock.connectors.mqtt.mqtt_source import MqttMessage, MqttSource
    from penstock.connectors.tls import Tls

_WHERE = {
    "MqttBroker": "penstock.connectors.mqtt.broker",
    "MqttMessage": "penstock.connectors.mqtt.mqtt_source",
    "MqttSink": "penstock.connectors.mqtt.mqtt_sink",
    "MqttSource": "penstock.connectors.mqtt.mqtt_source",
    "Tls": "penstock.connectors.tls",
}

__all__ = ["MqttBroker", "MqttMessage", "MqttSink", "MqttSource", "Tls"]

__getattr__ = lazy_names(__name__, _WHERE)
