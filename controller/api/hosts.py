"""Names of machines in URLs, and which Host headers name this machine.

A web page may let its own name point to this machine and make a browser call here (DNS rebinding);
the Host header then has the page's name.
"""

import ipaddress
from collections.abc import Collection, Iterable


def is_own_host(host: str, own: Collection[str]) -> bool:
    """`host`: a Host header's value, which says nothing of where an answer goes. All names of
    loopback are ours, with any port, as tunnels end there. `own`: further names and addresses, of
    `own_names`."""
    name = host_name(host)
    if name in own or name == "localhost" or name.endswith(".localhost"):
        return True
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


def is_loopback(host: str) -> bool:
    """Whether what is sent to a host stays on this machine, judged by the address and not by what a
    name resolves to today. Other names of loopback (`a.localhost`) are not counted: not every
    resolver knows them, and one that does not asks the network."""
    if host == "localhost":
        return True
    address = host.strip("[]")
    return _is_address(address) and ipaddress.ip_address(address).is_loopback


def own_names(written: Iterable[str]) -> frozenset[str]:
    """Names and addresses as an operator writes them, so that they compare with Host headers."""
    return frozenset(host_name(url_host(host) if _is_address(host) else host) for host in written)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_name(host: str) -> str:
    """The host without its port, without the brackets of an IPv6 address and without the dot that
    may end a name."""
    if host.startswith("["):
        address, _, port = host[1:].partition("]")
        return address.lower() if not port or port.startswith(":") else host
    return host.partition(":")[0].rstrip(".").lower()


def url_host(host: str) -> str:
    """The host as a URL has it: an IPv6 address stands in brackets."""
    return f"[{host}]" if ":" in host else host
