"""The version of this package; manifests name it."""

VERSION = "0.1.0"
