"""Watch temperatures that come by MQTT, and publish alerts to other topics.

A reading is a JSON object on the topic of its room, such as `{"room": "kitchen", "celsius": 31.5}`
on `rooms/kitchen/temperature`. A room that was above 30 degrees three times in a row gets an alert
on `alerts/<room>`. Stop the program with Ctrl-C. Then start it again with `penstock run
mqtt_alerts.py --resume`: the broker has kept what came meanwhile.

    python examples/connectors/mqtt_alerts.py --broker localhost --folder heating-job
"""

import argparse

from penstock import (
    Json,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
    Types,
    ValueStateDescriptor,
)
from penstock.connectors.mqtt import MqttBroker, MqttSink, MqttSource


class ThreeInARow(KeyedProcessFunction):
    """Emits an alert when a room is hot for the third time in a row."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def process_element(self, reading, ctx):
        count = (self.count.value() or 0) + 1 if reading["celsius"] > 30 else 0
        self.count.update(count)
        if count == 3:
            yield {"room": reading["room"], "alert": "it is hot"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--broker", default="localhost")
    parser.add_argument("--port", type=int, default=1883)
    parser.add_argument("--folder", default="heating-job", help="where the snapshots are")
    parser.add_argument("--client-id", default="heating")
    arguments = parser.parse_args()
    broker = MqttBroker(arguments.broker, arguments.port)

    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(500)
    env.get_checkpoint_config().set_checkpoint_storage_dir(arguments.folder)
    source = MqttSource(broker, "rooms/+/temperature", arguments.client_id, Json())
    readings = env.from_source(source).key_by(lambda reading: reading["room"])
    alerts = readings.process(ThreeInARow())
    alerts.sink_to(MqttSink(broker, lambda alert: f"alerts/{alert['room']}", Json()))
    env.execute("heating")


if __name__ == "__main__":
    main()
