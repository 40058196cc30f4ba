"""The endpoint's API keys."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence

from controller.api.settings.key_file import parse_line


class ApiKeys:
    """Holds digests of the keys only; a comparison's time tells nothing about them. `lines` are
    those of the key file."""

    def __init__(self, lines: Sequence[str]) -> None:
        parsed = [parse_line(line) for line in lines]
        self._digests = [_digest(each.key.encode()) for each in parsed]
        self._levels = [each.levels for each in parsed]

    def find(self, headers: Iterable[tuple[bytes, bytes]]) -> tuple[str, ...] | None:
        """Names of the levels that the headers' key may ask for; empty: all. None if the key is
        unknown."""
        if not self._digests:
            return ()
        scheme, _, key = next((v for k, v in headers if k == b"authorization"), b"").partition(b" ")
        given = _digest(key.strip())
        # Every key is compared, so that the time does not tell which one matched.
        known = [hmac.compare_digest(given, digest) for digest in self._digests]
        if scheme.lower() != b"bearer" or not any(known):
            return None
        return self._levels[known.index(True)]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
