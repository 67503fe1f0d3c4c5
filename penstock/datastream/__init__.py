"""Offer the public names of `penstock` under the module names of `pyflink.datastream`."""

from __future__ import annotations

from penstock import __getattr__ as __getattr__
from penstock.pyflink_layout import add_modules

add_modules(
    __name__,
    "async_data_stream async_retry_predicates async_retry_strategies checkpoint_config "
    "checkpoint_storage checkpointing_mode connectors connectors.base connectors.cassandra "
    "connectors.dynamic_kafka connectors.elasticsearch connectors.file_system "
    "connectors.hybrid_source connectors.jdbc connectors.kafka connectors.kinesis "
    "connectors.number_seq connectors.pulsar connectors.rabbitmq data_stream execution_mode "
    "externalized_checkpoint_retention formats formats.avro formats.csv formats.json formats.orc "
    "formats.parquet functions output_tag slot_sharing_group state state_backend "
    "stream_execution_environment time_characteristic time_domain timerservice utils window",
)
