import random

import pytest

from controller.adapters.gloo.wire import (
    HEADER_BYTES,
    Kind,
    NotALinkError,
    SliceHeader,
    decode,
    stage_key,
)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_header_comes_back(kind: Kind) -> None:
    header = SliceHeader(kind, stage_key("m/3"), first=2**31, num_blocks=7, num_bytes=2**40)
    assert len(header.encode()) == HEADER_BYTES
    assert decode(header.encode()) == header


def test_stages_have_keys_of_their_own() -> None:
    assert len({stage_key(f"m/{n}") for n in range(1000)}) == 1000


def test_what_is_no_header_is_refused() -> None:
    good = SliceHeader(Kind.LAST, stage_key("m/0")).encode()
    for position in range(4):
        bad = bytearray(good)
        bad[position] ^= 1
        with pytest.raises(NotALinkError):
            decode(bad)
    with pytest.raises(NotALinkError):
        decode(random.Random(1).randbytes(HEADER_BYTES))
    unknown_kind = bytearray(good)
    unknown_kind[good.index(Kind.LAST, 36)] = 9
    with pytest.raises(NotALinkError):
        decode(unknown_kind)
