"""The version of this package, which manifests contain."""

VERSION = "0.1.0"
