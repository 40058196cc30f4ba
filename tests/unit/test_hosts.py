"""Which Host headers name this machine."""

import pytest

from controller.api.hosts import is_own_host, own_names, url_host

OWN = ("gpu-box", "192.0.2.7")


@pytest.mark.parametrize(
    ("hosts", "is_own"),
    [
        (("localhost", "LOCALHOST:8000", "a.localhost", "localhost.", "127.9.9.9:1"), True),
        (("[::1]:8000", "gpu-box:8000", "GPU-box", "192.0.2.7:80"), True),
        (("", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"), False),
        (("0.0.0.0", "192.0.2.8", "[2001:db8::1]", "gpu-box.evil.example"), False),
        (("evil.example#localhost", "evil.example:80@localhost", "notlocalhost"), False),
        (("[::1].evil.example:80",), False),
    ],
)
def test_which_hosts_are_ours(hosts: tuple[str, ...], is_own: bool) -> None:
    assert [is_own_host(host, OWN) for host in hosts] == [is_own] * len(hosts)


@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("gpu-box:8000", "GPU-Box"),
        ("gpu-box.example.", "gpu-box.example:80"),
        ("2001:DB8::1", f"{url_host('2001:db8::1')}:8000"),
    ],
)
def test_a_name_of_ours_may_be_written_with_a_port_or_a_final_dot(written: str, host: str) -> None:
    assert is_own_host(host, own_names([written]))
    assert not is_own_host("evil.example", own_names([written]))
