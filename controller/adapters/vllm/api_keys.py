"""Who may use the endpoint."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from controller.api.key_file import parse_line

# A load balancer and a metrics collector have no key, and these tell no secrets.
OPEN_PATHS = frozenset({"/health", "/metrics"})


class ApiKeys:
    """`lines` as in `key_file`. Holds digests of the keys only; a comparison's time tells nothing
    about them."""

    def __init__(self, lines: Sequence[str]) -> None:
        parsed = [parse_line(line) for line in lines]
        self._digests = [_digest(each.key.encode()) for each in parsed]
        self._levels = [each.levels for each in parsed]

    def admit(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        return not self._digests or path in OPEN_PATHS or self._place(headers) is not None

    def levels(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, ...]:
        """Names of those that may be asked for with the key of these headers; empty: all."""
        place = self._place(headers)
        return () if place is None else self._levels[place]

    def _place(self, headers: Iterable[tuple[bytes, bytes]]) -> int | None:
        scheme, _, key = next((v for k, v in headers if k == b"authorization"), b"").partition(b" ")
        given = _digest(key.strip())
        # All of them, whichever it is: no early way out.
        known = [hmac.compare_digest(given, digest) for digest in self._digests]
        return known.index(True) if scheme.lower() == b"bearer" and any(known) else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
