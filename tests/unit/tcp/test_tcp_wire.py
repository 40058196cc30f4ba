import pytest

from controller.adapters.tcp.link_stream import LinkKey, new_secret
from controller.adapters.tcp.transfer import Kind, NotALinkError, SliceHeader, stage_key

HEADER = SliceHeader(Kind.LAST, stage_key("m/0"), 1, 2, 3).encode()


@pytest.mark.parametrize("kind", list(Kind))
def test_a_header_comes_back(kind: Kind) -> None:
    header = SliceHeader(kind, stage_key("m/3"), first=2**31, num_blocks=7, num_bytes=2**40)
    assert SliceHeader.decode(header.encode()) == header


def test_stages_have_keys_of_their_own() -> None:
    assert len({stage_key(f"m/{n}") for n in range(1000)}) == 1000


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(NotALinkError):
        SliceHeader.decode(HEADER[:-1] + bytes([9]))


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
