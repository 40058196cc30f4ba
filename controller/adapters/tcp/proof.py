"""How the two ends of a link recognize each other, and each slice of the link.

Each end makes a secret for each link and tells it to the other through the mailbox, which is
encrypted and admits the cluster's processes only. The link's key is computed from both secrets and
never sent; only proofs and seals computed with it are. A key is used for one connection only, so a
recording of another connection is worth nothing.
"""

import hashlib
import hmac
import secrets
from itertools import count

SECRET_BYTES = 32
ID_BYTES = 16
PROOF_BYTES = 32
SEAL_BYTES = 16


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


def link_id(name: str) -> bytes:
    """Names a connection's link to the door; no secret."""
    return hashlib.blake2b(name.encode(), digest_size=ID_BYTES).digest()


class LinkKey:
    def __init__(self, name: str, source_secret: bytes, destination_secret: bytes) -> None:
        self._key = hashlib.blake2b(
            link_id(name) + source_secret + destination_secret, digest_size=SECRET_BYTES
        ).digest()

    def proof_of_source(self) -> bytes:
        return self._mac(b"source", PROOF_BYTES)

    def proof_of_destination(self) -> bytes:
        return self._mac(b"destination", PROOF_BYTES)

    def seal_of(self, number: int, header: bytes) -> bytes:
        return self._mac(number.to_bytes(8, "little") + header, SEAL_BYTES)

    def _mac(self, text: bytes, size: int) -> bytes:
        return hashlib.blake2b(text, key=self._key, digest_size=size).digest()


class Seals:
    """Both ends count the slices of a link from its first one on. A seal takes 2 us."""

    def __init__(self, key: LinkKey) -> None:
        self._key = key
        self._numbers = count()

    def sealed(self, header: bytes) -> bytes:
        return header + self._key.seal_of(next(self._numbers), header)

    def opened(self, sealed: bytes) -> bytes | None:
        """The header; None if this is not the link's next slice."""
        header, seal = sealed[:-SEAL_BYTES], sealed[-SEAL_BYTES:]
        good = hmac.compare_digest(self._key.seal_of(next(self._numbers), header), seal)
        return header if good else None
