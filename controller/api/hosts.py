"""Names of machines in URLs, and which Host headers name this machine.

A web page may let its own host name point to this machine, and so make a browser call this
machine's ports (DNS rebinding). The Host header then has the page's host name. The endpoint, the
control API, the dashboard in a browser and the mailboxes share these few functions and nothing
else, so they have a module of their own.
"""

import ipaddress
from collections.abc import Collection, Iterable


def is_own_host(host: str, own: Collection[str]) -> bool:
    """Whether the value of a Host header names this machine. All names of loopback count as this
    machine's, with any port, because tunnels end at loopback. (The header does not tell who gets
    the answer.) `own`: further names and addresses, from `own_names`."""
    name = host_name(host)
    if name in own or name == "localhost" or name.endswith(".localhost"):
        return True
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


def is_loopback(host: str) -> bool:
    """Whether data that is sent to the host stays on this machine. This is judged by the address,
    not by what a name resolves to today. Names such as `a.localhost` do not count: some resolvers
    do not know them, and ask the network."""
    if host == "localhost":
        return True
    address = host.strip("[]")
    return _is_address(address) and ipaddress.ip_address(address).is_loopback


def own_names(written: Iterable[str]) -> frozenset[str]:
    """The names and addresses that an operator wrote, in the form that Host headers have."""
    return frozenset(host_name(url_host(host) if _is_address(host) else host) for host in written)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def host_name(host: str) -> str:
    """The host without its port, the brackets of an IPv6 address, and the dot at a name's end."""
    if host.startswith("["):
        address, _, port = host[1:].partition("]")
        return address.lower() if not port or port.startswith(":") else host
    return host.partition(":")[0].rstrip(".").lower()


def url_host(host: str) -> str:
    """The host as a URL contains it: an IPv6 address stands in brackets."""
    return f"[{host}]" if ":" in host else host
