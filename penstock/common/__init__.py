"""Offer the public names of `penstock` under the module names of `pyflink.common`."""

from __future__ import annotations

from penstock import __getattr__ as __getattr__
from penstock.pyflink_layout import add_modules

add_modules(
    __name__,
    "completable_future config_options configuration execution_config execution_mode "
    "input_dependency_constraint io job_client job_execution_result job_id job_status "
    "restart_strategy serialization serializer time typeinfo types watermark_strategy",
)
