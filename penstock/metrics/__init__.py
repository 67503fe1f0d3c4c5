"""Offer the public names of `penstock` under the module names of `pyflink.metrics`."""

from __future__ import annotations

from penstock import __getattr__ as __getattr__
from penstock.pyflink_layout import add_modules

add_modules(__name__, "metricbase")
