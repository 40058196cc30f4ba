"""The run state: what `up` leaves on disk so that the other commands find the cluster.

Each cluster has a folder of mode 0700 below the XDG state folder, with `run.json` (0600, as it
holds the control token) and `lock`. This module imports the standard library only, so that commands
start fast. Within one `schema_version` fields are only added, and readers ignore unknown fields.
"""

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self, get_origin

from controller.api.errors import LlumctlError, NotRunningError, RefusedError, UsageError
from controller.api.state import user_files
from controller.api.state.user_files import user_folder
from controller.api.text.hints import upgrade_command

SCHEMA_VERSION = 1
CLUSTER_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,23}")
"""Allows the same names as `controller.api.settings.settings.ClusterName`."""

VIEW_TOKEN_FILE = "view-token"
"""The file next to run.json with a token that may read the control API but give no orders. It is
for Prometheus."""

MAX_BYTES = 1 << 20
_FILE = "run.json"
_LOCK = "lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """A running cluster. Each of its processes has `nonce` in its environment."""

    schema_version: int = SCHEMA_VERSION
    cluster: str
    nonce: str = field(repr=False)
    control_url: str
    control_token: str = field(repr=False)
    endpoint_url: str
    ray_address: str
    owns_ray: bool
    """Whether `up` started Ray. Only then `down` stops it."""
    ray_head_pid: int | None
    ray_head_started_s: float | None
    """When the head process was created, in seconds since the epoch. The time distinguishes the
    head from a later process with the same pid."""
    namespace: str
    started_at_s: float
    """Seconds since the epoch."""
    log_dir: str
    temp_dir: str
    grace_s: float = 30.0
    """How long `down` lets live requests go on by default."""
    ray_environment: dict[str, str] = field(default_factory=dict)
    """The environment that a process needs to reach this Ray: the kind of authentication, and where
    the token is."""
    endpoint_certificate: str = ""
    """The file with the endpoint's certificate; empty if the endpoint speaks plain http."""
    config_file: str = ""
    """The configuration file that `up` read; empty if it read none."""

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads a run state. Raises ValueError for anything that is not a run state of a known
        schema."""
        raw = json.loads(text)
        if not isinstance(raw, dict):
            raise ValueError("not an object")
        version = raw.get("schema_version")
        if not isinstance(version, int):
            raise ValueError("schema_version is missing")
        if version > SCHEMA_VERSION:
            raise NewerSchemaError(version)
        known = {item.name: item for item in fields(cls)}
        for name, item in known.items():
            if name not in raw:
                if item.default is MISSING and item.default_factory is MISSING:
                    raise ValueError(f"{name} is missing")
            elif not _fits(raw[name], item.type):
                raise ValueError(f"{name} has the wrong type")
        return cls(**{name: value for name, value in raw.items() if name in known})


class NewerSchemaError(ValueError):
    """The file was written by a newer llumctl."""


class CorruptError(LlumctlError):
    """The run state cannot be read. `down` finds the cluster without it."""


_WAY_OUT = "llumctl down      (stops what it finds of it, keeps the file)"


def state_root() -> Path:
    """The folder of all clusters' folders. A relative $XDG_STATE_HOME is ignored."""
    return user_folder("XDG_STATE_HOME", ".local/state") / "llumctl"


def state_path(cluster: str) -> Path:
    """The cluster's folder, whether or not it exists."""
    if not CLUSTER_NAME.fullmatch(cluster):
        raise UsageError(
            f"{cluster[:60]!r} is not a cluster name: 1 to 24 lower-case letters, digits and dashes"
        )
    return state_root() / cluster


def state_dir(cluster: str) -> Path:
    """The cluster's folder, which is made if it is absent, and closed to other users."""
    path = state_path(cluster)
    for folder in (path.parent, path):
        _private_dir(folder)
    return path


def clusters() -> list[str]:
    """Names of the clusters that have a run state, sorted."""
    with contextlib.suppress(OSError):
        return sorted(file.parent.name for file in state_root().glob(f"*/{_FILE}"))
    return []


def run_file(cluster: str) -> Path:
    return state_path(cluster) / _FILE


def save(state: RunState) -> Path:
    """Replaces the cluster's run state in one step: a reader sees the old state or the new one."""
    target = state_dir(state.cluster) / _FILE
    try:
        user_files.replace(target, json.dumps(asdict(state), indent=2) + "\n")
    except OSError as error:
        raise LlumctlError(
            f"cannot write the run state {target}: {error.strerror}", "llumctl doctor"
        ) from error
    return target


def view_token(cluster: str) -> str:
    """The token that may read the control API but give no orders. Raises NotRunningError."""
    try:
        return user_files.read(state_path(cluster) / VIEW_TOKEN_FILE, MAX_BYTES).decode().strip()
    except (OSError, ValueError) as error:
        raise NotRunningError(
            f"cluster {cluster} has no readable {VIEW_TOKEN_FILE}: {error}", "llumctl up"
        ) from error


def load(cluster: str) -> RunState | None:
    path = run_file(cluster)
    try:
        state = RunState.from_json(user_files.read(path, MAX_BYTES).decode())
        if state.cluster != cluster:  # a copied file: stopping this cluster would stop the other
            raise ValueError(f"it is that of cluster {state.cluster[:60]!r}")
        return state
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CorruptError(
            f"cannot read the run state {path}: {error.strerror}", _WAY_OUT
        ) from error
    except NewerSchemaError as error:
        raise LlumctlError(
            f"{path} was written by a newer llumctl (schema {error}, this one knows"
            f" {SCHEMA_VERSION})",
            upgrade_command(),
        ) from error
    except (ValueError, RecursionError) as error:
        raise CorruptError(f"the run state {path} is corrupt: {error}", _WAY_OUT) from error


def remove(cluster: str) -> None:
    """Removes the run state. The cluster's folder stays, with its logs and the lock."""
    run_file(cluster).unlink(missing_ok=True)


def set_aside(cluster: str) -> Path:
    """Renames a run state that cannot be used, so that it is no longer in the way."""
    path = run_file(cluster)
    return path.replace(path.with_suffix(".json.bad"))


@contextlib.contextmanager
def lock(cluster: str) -> Iterator[None]:
    """Lets only one `up` or `down` of a cluster work at a time. The process's end releases the
    lock.

    Raises:
        RefusedError: another process holds the lock; it is not waited for.
    """
    path = state_dir(cluster) / _LOCK
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode("ascii", "replace").strip() or "unknown"
            raise RefusedError(
                f"cluster {cluster} is being started or stopped by another command (pid {holder})",
                "llumctl status --watch",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def is_being_changed(cluster: str) -> bool:
    """Whether an `up` or `down` of the cluster is at work, according to the kernel's list of locks.
    Trying the lock instead would make an `up` fail that starts at that moment."""
    with contextlib.suppress(OSError):
        found = (state_path(cluster) / _LOCK).stat()
        ours = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
        return any(
            "FLOCK" in line and ours in line.split()
            for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()
        )
    return False


def _private_dir(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
        for uid in (path.lstat().st_uid, found.st_uid):  # of the link, and of its target
            if uid != os.geteuid():
                raise RefusedError(
                    f"{path} belongs to another user (uid {uid})",
                    "XDG_STATE_HOME=<a folder of yours> llumctl ...",
                )
        if stat.S_IMODE(found.st_mode) & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise LlumctlError(
            f"cannot use the state folder {path}: {error.strerror}",
            "XDG_STATE_HOME=<a folder of yours> llumctl ...",
        ) from error


def _fits(value: object, kind: Any) -> bool:
    """Whether a JSON value has the annotated type. An integer counts as a float, but a bool does
    not count as a number."""
    if isinstance(value, bool):
        return kind is bool
    if isinstance(value, int):
        return isinstance(value, kind) or isinstance(0.0, kind)
    return isinstance(value, dict if get_origin(kind) is dict else kind)
