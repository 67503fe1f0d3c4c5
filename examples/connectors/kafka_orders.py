"""Add up the orders of a Kafka topic by product and minute, and write the sums to another topic.

It writes a few orders first, reads them once, and prints what it has written.

    python examples/connectors/kafka_orders.py localhost:9092
"""

import sys
import uuid

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from penstock.connectors.formats import Json, SimpleStringSchema


def fill(servers, orders, totals):
    """Create the topics, and write orders with times."""
    admin = AdminClient({"bootstrap.servers": servers})
    for created in admin.create_topics([NewTopic(orders, 2, 1), NewTopic(totals, 1, 1)]).values():
        created.result(60)
    producer = Producer({"bootstrap.servers": servers})
    minute = 1_900_000_020_000
    for product, quantity, seconds in (
        ("tea", 2, 1),
        ("salt", 1, 2),
        ("tea", 3, 59),
        ("tea", 1, 61),
    ):
        text = f'{{"product": "{product}", "quantity": {quantity}}}'
        producer.produce(orders, text, key=product, timestamp=minute + 1_000 * seconds)
    producer.flush()


def main(servers):
    """Run the job, and print the topic of the sums."""
    run = uuid.uuid4().hex[:8]
    orders, totals = f"orders-{run}", f"totals-{run}"
    fill(servers, orders, totals)
    latest = KafkaOffsetsInitializer.latest()
    env = StreamExecutionEnvironment.get_execution_environment()
    source = KafkaSource(servers, orders, Json(), stopping_offsets=latest)
    times = WatermarkStrategy.for_monotonous_timestamps()
    sums = (
        env.from_source(source, times, "orders")
        .map(lambda order: (order["product"], order["quantity"]))
        .key_by(lambda pair: pair[0])
        .window(TumblingEventTimeWindows.of(Time.minutes(1)))
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    schema = KafkaRecordSerializationSchema(
        totals, Json(), key=SimpleStringSchema(), key_of=lambda pair: pair[0]
    )
    sums.sink_to(KafkaSink(servers, schema))
    env.execute("orders")
    written = KafkaSource(servers, totals, Json(), stopping_offsets=latest)
    for product, quantity in sorted(env.from_source(written).execute_and_collect("totals")):
        print(product, quantity)


if __name__ == "__main__":
    main(sys.argv[1])
