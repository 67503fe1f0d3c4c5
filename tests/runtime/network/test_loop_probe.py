"""Probes of loops as bytes."""

import pytest

from penstock import ProtocolError
from penstock.dataflow.time.watermark import MAX_WATERMARK, MIN_WATERMARK
from penstock.runtime.control.packing import pack
from penstock.runtime.network.loop_probe import (
    NOTHING,
    LoopProbe,
    ProbeRequest,
    pack_probe,
    unpack_probe,
)


@pytest.mark.parametrize(
    "element",
    [
        LoopProbe(1),
        LoopProbe(2, -5, MIN_WATERMARK, NOTHING, MAX_WATERMARK, 7),
        ProbeRequest(0),
    ],
)
def test_a_probe_comes_back_from_its_bytes(element: LoopProbe | ProbeRequest):
    assert unpack_probe(pack_probe(element)) == element


@pytest.mark.parametrize("values", [[], [1, 2], ["a"], [1, 2, 3, 4, 5, None], 7])
def test_malformed_bytes_are_refused(values: object):
    with pytest.raises(ProtocolError, match="probe"):
        unpack_probe(pack(values))


def test_a_probe_covers_what_both_have_passed():
    one = LoopProbe(3, outside=5, idle=1, lowest=9, inside=4, behind=2)
    two = LoopProbe(3, outside=7, idle=2, lowest=8, inside=6, behind=1)
    assert one.covering(two) == LoopProbe(3, 5, 2, 8, 4, 2)
    assert one.covering(LoopProbe(3)) == one
