"""Headers that are given twice, and foreign Hosts."""

import pytest

from controller.adapters.vllm.endpoint.headers import ONCE, RefusedError, check_headers, check_host


@pytest.mark.parametrize("name", ONCE)
def test_two_of_a_kind(name: bytes) -> None:
    check_headers([(name, b"a"), (b"accept", b"a"), (b"accept", b"b")])
    with pytest.raises(RefusedError, match="more than once") as refused:
        check_headers([(name, b"a"), (b"x", b"y"), (name, b"a")])
    assert refused.value.status == 400
    assert refused.value.param is not None
    assert refused.value.param.lower().encode() == name


def test_a_foreign_host() -> None:
    for host in (b"localhost:8000", b"127.0.0.1", b"gpu-box:80"):
        check_host([(b"host", host)], ("gpu-box",))
    check_host([], ())
    with pytest.raises(RefusedError, match="allowed_hosts") as refused:
        check_host([(b"host", b"evil.example:8000")], ("gpu-box",))
    assert (refused.value.status, refused.value.param) == (403, "Host")
