"""The cluster's spec as a JSON file of mode 0600 in its state folder, beside the audit log.

The file holds the nonce of the cluster's run, as a spec ends with its run. Within one
`schema_version` fields are only added; unknown ones are ignored on reading.
"""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from controller.api.errors import LlumctlError
from controller.api.state import user_files
from controller.core.operations.cluster_spec import ClusterSpec

FILE = "spec.json"
MAX_BYTES = 16 << 20
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
        self.path = Path(state_dir) / FILE
        self._nonce = nonce

    def load(self) -> ClusterSpec | None:
        try:
            text = user_files.read(self.path, MAX_BYTES).decode()
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
