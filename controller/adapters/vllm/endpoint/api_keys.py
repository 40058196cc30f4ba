"""The endpoint's API keys."""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass

from controller.api.settings.key_file import key_id, parse_line


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """Who asks. `key_id`: of the API key; empty: the endpoint has none. `levels`: names of those
    that the key may ask for; empty: all."""

    key_id: str = ""
    levels: tuple[str, ...] = ()


class ApiKeys:
    """Holds digests of the keys only; a comparison's time tells nothing about them. `lines` are
    those of the key file."""

    def __init__(self, lines: Sequence[str]) -> None:
        parsed = [parse_line(line) for line in lines]
        self._digests = [_digest(each.key.encode()) for each in parsed]
        self._holders = [KeyHolder(key_id(each.key), each.levels) for each in parsed]

    def find(self, headers: Iterable[tuple[bytes, bytes]]) -> KeyHolder | None:
        """None if the headers' key is unknown."""
        if not self._digests:
            return KeyHolder()
        named = dict(headers)
        # Anthropic's clients give their key in a header of its own.
        bearer = named.get(b"authorization", b"Bearer " + named.get(b"x-api-key", b""))
        scheme, _, key = bearer.partition(b" ")
        given = _digest(key.strip())
        # Every key is compared, so that the time does not tell which one matched.
        known = [hmac.compare_digest(given, digest) for digest in self._digests]
        if scheme.lower() != b"bearer" or not any(known):
            return None
        return self._holders[known.index(True)]


ASKED_KEY: ContextVar[str] = ContextVar("asked_key", default="")
"""`key_id` of the HTTP request that this task, or the task that started it, answers."""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
