"""The version of Penstock, which is also written to the manifest of each snapshot."""

VERSION = "0.1.0"
#: PyFlink's name.
__version__ = VERSION
