"""Names of machines in URLs, and which Host headers name this one. A page that a browser loaded may
call here under a name of its own that it lets point to us (DNS rebinding): that name is then in the
Host header."""

import ipaddress
from collections.abc import Collection


def is_own_host(host: str, own: Collection[str]) -> bool:
    """`host`: a Host header's value. Loopback by any name and port is ours, as tunnels end there;
    `own`: further names and addresses, in lower case."""
    name = host_name(host)
    if name in own or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_name(host: str) -> str:
    """Without the port and the brackets of an IPv6 address."""
    if host.startswith("["):
        address, _, port = host[1:].partition("]")
        return address.lower() if not port or port.startswith(":") else host
    return host.partition(":")[0].rstrip(".").lower()


def url_host(host: str) -> str:
    """As a URL has it: an IPv6 address stands in brackets."""
    return f"[{host}]" if ":" in host else host
