"""Names of machines in URLs, and which Host headers name this machine.

A web page may let its own name point to this machine and make a browser call here (DNS rebinding);
the Host header then has the page's name.
"""

import ipaddress
from collections.abc import Collection


def is_own_host(host: str, own: Collection[str]) -> bool:
    """`host`: a Host header's value. All names of loopback are ours, with any port, as tunnels end
    there. `own`: further names and addresses, in lower case."""
    name = host_name(host)
    if name in own or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def host_name(host: str) -> str:
    """The host without its port and without the brackets of an IPv6 address."""
    if host.startswith("["):
        address, _, port = host[1:].partition("]")
        return address.lower() if not port or port.startswith(":") else host
    return host.partition(":")[0].rstrip(".").lower()


def url_host(host: str) -> str:
    """The host as a URL has it: an IPv6 address stands in brackets."""
    return f"[{host}]" if ":" in host else host
