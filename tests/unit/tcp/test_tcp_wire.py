import pytest

from controller.adapters.tcp.proof import SEAL_BYTES, LinkKey, Seals, new_secret
from controller.adapters.tcp.wire import (
    SEALED_HEADER_BYTES,
    Kind,
    NotALinkError,
    SliceHeader,
    decode,
    stage_key,
)

HEADER = SliceHeader(Kind.LAST, stage_key("m/0"), 1, 2, 3).encode()


@pytest.mark.parametrize("kind", list(Kind))
def test_a_header_comes_back(kind: Kind) -> None:
    header = SliceHeader(kind, stage_key("m/3"), first=2**31, num_blocks=7, num_bytes=2**40)
    assert len(header.encode()) + SEAL_BYTES == SEALED_HEADER_BYTES
    assert decode(header.encode()) == header


def test_stages_have_keys_of_their_own() -> None:
    assert len({stage_key(f"m/{n}") for n in range(1000)}) == 1000


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(NotALinkError):
        decode(HEADER[:-1] + bytes([9]))


def ends() -> tuple[Seals, Seals]:
    secrets = new_secret(), new_secret()
    return Seals(LinkKey("a>b#1", *secrets)), Seals(LinkKey("a>b#1", *secrets))


def test_sealed_headers_are_opened_in_their_order() -> None:
    source, destination = ends()
    for _ in range(3):
        assert destination.opened(source.sealed(HEADER)) == HEADER


def test_a_header_changed_replayed_or_left_out_is_refused() -> None:
    for position in range(SEALED_HEADER_BYTES):
        source, destination = ends()
        bad = bytearray(source.sealed(HEADER))
        bad[position] ^= 1
        assert destination.opened(bytes(bad)) is None
    source, destination = ends()
    first = source.sealed(HEADER)
    assert destination.opened(first) == HEADER
    assert destination.opened(first) is None
    source, destination = ends()
    source.sealed(HEADER)
    assert destination.opened(source.sealed(HEADER)) is None


def test_each_link_and_each_end_has_a_proof_of_its_own() -> None:
    one, other = new_secret(), new_secret()
    keys = [
        LinkKey("a>b#1", one, other),
        LinkKey("a>b#2", one, other),
        LinkKey("a>b#1", other, one),
        LinkKey("a>b#1", one, new_secret()),
        LinkKey("a>b#1", new_secret(), other),
    ]
    proofs = {key.proof_of_source() for key in keys} | {key.proof_of_destination() for key in keys}
    assert len(proofs) == 2 * len(keys)
    assert keys[0].proof_of_source() == LinkKey("a>b#1", one, other).proof_of_source()
