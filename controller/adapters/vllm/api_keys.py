"""Who may use the endpoint."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence

# A load balancer and a metrics collector have no key, and these tell no secrets.
OPEN_PATHS = frozenset({"/health", "/metrics"})


class ApiKeys:
    """Holds digests of the keys only; a comparison's time tells nothing about them."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def admit(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        if not self._digests or path in OPEN_PATHS:
            return True
        scheme, _, key = next((v for k, v in headers if k == b"authorization"), b"").partition(b" ")
        given = _digest(key.strip())
        # All of them, whichever it is: no early way out.
        known = [hmac.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == b"bearer" and any(known)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
