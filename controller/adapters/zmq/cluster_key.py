"""Only holders of the cluster's key may write to its inboxes.

CURVE is ZeroMQ's own security: it encrypts every connection, proves the inbox to the sender
before anything is sent, and tells the inbox the sender's public key. libzmq asks a ZAP handler, a
REP socket at a fixed address in the inbox's own context, whether that key may enter. One key pair
serves the whole cluster, so the handler admits one key; while it does not answer, nobody enters.
A sender that does not know the inbox's public half (it is in the plan only) is turned away before
the handler is asked.
"""

import hmac
import logging
from typing import Any, NoReturn

import zmq
import zmq.asyncio
from zmq.utils import z85

log = logging.getLogger(__name__)

ZAP_ADDRESS = "inproc://zeromq.zap.01"
ZAP_DOMAIN = "llumctl"


def new_secret_key() -> str:
    """The secret half of a new key pair; Z85, 40 characters."""
    _, secret = zmq.curve_keypair()
    return secret.decode("ascii")


class ClusterKey:
    """The key pair with this secret half. Raises zmq.ZMQError if `secret` is no key."""

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode("ascii")
        self._public = zmq.curve_public(self._secret)

    def guard(self, inbox: zmq.asyncio.Socket) -> zmq.asyncio.Socket:
        """Makes an inbox that is not yet bound refuse foreign keys; returns the socket on which
        `admit` must run."""
        inbox.setsockopt(zmq.CURVE_SERVER, 1)
        inbox.setsockopt(zmq.CURVE_SECRETKEY, self._secret)
        inbox.setsockopt_string(zmq.ZAP_DOMAIN, ZAP_DOMAIN)
        inbox.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without it, no handler means "admit all"
        asked: zmq.asyncio.Socket = inbox.context.socket(zmq.REP)
        asked.bind(ZAP_ADDRESS)
        return asked

    def show(self, out: "zmq.Socket[Any]") -> None:
        """Lets a socket that is not yet connected prove itself to guarded inboxes."""
        out.setsockopt(zmq.CURVE_SERVERKEY, self._public)
        out.setsockopt(zmq.CURVE_PUBLICKEY, self._public)
        out.setsockopt(zmq.CURVE_SECRETKEY, self._secret)

    async def admit(self, asked: zmq.asyncio.Socket) -> NoReturn:
        """Answers libzmq's questions (ZeroMQ's RFC 27), one per connection."""
        public = z85.decode(self._public)
        while True:
            request = await asked.recv_multipart()
            version, request_id, _, address = request[:4]
            mechanism, *credentials = request[5:]
            known = mechanism == b"CURVE" and hmac.compare_digest(b"".join(credentials), public)
            if not known:
                log.warning("a connection from %s has a foreign key", address.decode("ascii"))
            status = b"200" if known else b"400"
            await asked.send_multipart([version, request_id, status, b"", b"", b""])
