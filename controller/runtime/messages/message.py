"""What every message between the cluster's own processes is."""

import msgspec


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass
