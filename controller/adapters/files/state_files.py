"""What the cluster must find again, in files of mode 0600 in its state folder, beside the audit
log: its spec, and which incarnations its members were given.
"""

import logging
import os
from pathlib import Path
from typing import Annotated

import msgspec
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.api.errors import LlumctlError
from controller.api.state import user_files
from controller.core.fleet.cluster_spec import ClusterSpec
from controller.core.fleet.incarnations import LastIncarnation

# -- the spec --------------------------------------------------------------------------------------
# The cluster's spec as a JSON file of mode 0600 in its state folder, beside the audit log.
#
# The file holds the nonce of the cluster's run, as a spec ends with its run. Within one
# `schema_version` fields are only added; unknown ones are ignored on reading.

SPEC_FILE = "spec.json"
MAX_SPEC_BYTES = 16 << 20
SCHEMA_VERSION = 3
"""1 had one drain order for each instance, in which the one before was nested; 2 had cordons in
place of marks."""


class _Version(BaseModel):
    schema_version: int


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, allow_inf_nan=False)

    schema_version: int = SCHEMA_VERSION
    nonce: Annotated[str, Field(min_length=1)]
    spec: ClusterSpec


class SpecFile:
    def __init__(self, state_dir: str | Path, nonce: str) -> None:
        self.path = Path(state_dir) / SPEC_FILE
        self._nonce = nonce

    def load(self) -> ClusterSpec | None:
        try:
            text = user_files.read(self.path, MAX_SPEC_BYTES).decode()
            kept = _parsed(text)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LlumctlError(
                f"cannot read {self.path}: {error.strerror}", "llumctl doctor"
            ) from error
        except ValueError as error:
            raise LlumctlError(
                f"the cluster's spec {self.path} is broken: {_first_line(error)}",
                f"rm {self.path}      (the cluster is then as it was started)",
            ) from error
        return kept.spec if kept.nonce == self._nonce else None

    def save(self, spec: ClusterSpec) -> None:
        """Blocks the event loop, which keeps changes in their order: for 2 ms as a rule, 7 ms at
        most, in 50 tries on the local disk of a busy machine."""
        kept = _Kept(nonce=self._nonce, spec=spec)
        try:
            user_files.replace(self.path, kept.model_dump_json(indent=2) + "\n")
        except OSError as error:
            raise LlumctlError(
                f"cannot write {self.path}: {error.strerror}", "llumctl doctor"
            ) from error


def _parsed(text: str) -> _Kept:
    """Raises ValueError unless all of the file can be read: a part of a spec is of no use."""
    if (version := _Version.model_validate_json(text).schema_version) != SCHEMA_VERSION:
        age = "a newer" if version > SCHEMA_VERSION else "an older"
        raise ValueError(
            f"it was written by {age} llumctl (schema {version}, this one reads {SCHEMA_VERSION})"
        )
    kept = _Kept.model_validate_json(text)
    kept.spec.check()
    return kept


def _first_line(error: ValueError) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


# -- incarnations ----------------------------------------------------------------------------------
# Which incarnations members were given, as lines of JSON in the cluster's state folder, mode 0600.
#
# A line is appended before its Welcome is sent and outlives the controller's process, but not the
# machine: a cluster whose controller's machine died is over. It takes 0.05 ms, without a wait for
# the disk. The first line names the run of the cluster.

log = logging.getLogger(__name__)

INCARNATION_FILE = "incarnations.jsonl"

_line_decoder = msgspec.json.Decoder(tuple[str, LastIncarnation])


class IncarnationFile:
    def __init__(self, state_dir: str | Path, nonce: str) -> None:
        self.path = Path(state_dir) / INCARNATION_FILE
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
                member_id, last = _line_decoder.decode(line)
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
