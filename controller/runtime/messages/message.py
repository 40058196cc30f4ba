"""The base of all messages between the cluster's processes."""

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass
