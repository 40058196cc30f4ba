"""Which incarnations members were given, as lines of JSON in the cluster's state folder, mode 0600.

A line is appended before its Welcome is sent and outlives the controller's process, but not the
machine: a cluster whose controller's machine died is over. It takes 0.05 ms, without a wait for the
disk. The first line names the run of the cluster.
"""

import logging
import os
from pathlib import Path

import msgspec

from controller.core.fleet.incarnations import LastIncarnation

log = logging.getLogger(__name__)

FILE = "incarnations.jsonl"

_decoder = msgspec.json.Decoder(tuple[str, LastIncarnation])


class IncarnationFile:
    def __init__(self, state_dir: str | Path, nonce: str) -> None:
        self.path = Path(state_dir) / FILE
        self._header = msgspec.json.encode({"run": nonce})

    def load(self) -> dict[str, LastIncarnation]:
        try:
            header, *lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return {}
        except OSError as error:
            log.error("earlier incarnations cannot be read: %s", error)
            return {}
        found: dict[str, LastIncarnation] = {}
        for line in lines if header == self._header else ():
            try:
                member_id, last = _decoder.decode(line)
            except msgspec.MsgspecError:  # a line torn by a full disk
                continue
            found[member_id] = last
        return found

    def keep(self, member_id: str, last: LastIncarnation) -> None:
        try:
            # A line begins with its newline, so that a torn one costs no other.
            self._append(b"\n" + msgspec.json.encode((member_id, last)))
        except OSError as error:
            log.error("%s: incarnation %d is not kept: %s", member_id, last.incarnation, error)

    def _append(self, line: bytes) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        descriptor = os.open(self.path, flags, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            if os.pread(descriptor, len(self._header), 0) != self._header:
                file.truncate(0)
                line = self._header + line
            file.write(line)
