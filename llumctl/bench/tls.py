"""Which certificate `bench` believes to be the endpoint's.

The certificate of a cluster on this machine is known: it alone is believed, whatever names it has
(the address may be 127.0.0.1). Elsewhere the system's authorities count, or SSL_CERT_FILE.
"""

import ssl
from functools import cache
from pathlib import Path

_END = "-----END CERTIFICATE-----"
_BEGIN = "-----BEGIN CERTIFICATE-----"


@cache
def context(url: str, certificate: str = "") -> ssl.SSLContext | None:
    """None for plain http; loading the authorities takes 36 ms. Raises OSError (SSLError too)."""
    if not url.startswith("https:"):
        return None
    if not certificate:
        return ssl.create_default_context()
    text = Path(certificate).read_text(encoding="utf-8")
    first = text[text.find(_BEGIN) :].partition(_END)[0] + _END + "\n"
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    found.check_hostname = False
    found.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    found.load_verify_locations(cadata=first)
    return found
