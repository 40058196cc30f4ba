"""How the two ends of a link recognize each other.

Each end makes a secret for each link and tells it to the other through the mailbox, which is
encrypted and admits the cluster's processes only. The link's key is computed from both secrets and
never sent; only proofs computed with it are. A key is used for one connection only, so a
recording of another connection is worth nothing.
"""

import hashlib
import secrets

SECRET_BYTES = 32
ID_BYTES = 16
PROOF_BYTES = 32


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
        return self._proof(b"source")

    def proof_of_destination(self) -> bytes:
        return self._proof(b"destination")

    def _proof(self, end: bytes) -> bytes:
        return hashlib.blake2b(end, key=self._key, digest_size=PROOF_BYTES).digest()
