"""The log files of a cluster's members: which there are."""

import re
from pathlib import Path

from controller.api.errors import LlumctlError, NotFoundError

_NUMBER = re.compile(r"(\d+)")


def folder(cluster: str) -> Path:
    """Where the logs are; of a cluster that was stopped, where they were left."""
    from controller.api.state import run_state

    state = run_state.load(cluster)
    return run_state.state_path(cluster) / "logs" if state is None else Path(state.log_dir)


def find(logs: Path) -> dict[str, Path]:
    """Member -> file, i-2 before i-10."""
    try:
        files = [path for path in logs.iterdir() if path.suffix == ".log"]
    except (FileNotFoundError, NotADirectoryError):
        files = []
    except OSError as error:
        raise LlumctlError(f"cannot read {logs}: {error.strerror}", f"ls -ld {logs}") from error
    return {path.stem: path for path in sorted(files, key=_natural)}


def choose(logs: dict[str, Path], member: str | None, cluster: str) -> dict[str, Path]:
    """The log of one member, or all. Raises NotFoundError with the names that there are."""
    if not logs:
        raise NotFoundError(f"cluster {cluster} has left no logs", "llumctl up")
    if member is None:
        return logs
    if member not in logs:
        raise NotFoundError(
            f"cluster {cluster} has no log of {member[:60]!r}",
            f"llumctl logs ID      with one of {', '.join(logs)}",
        )
    return {member: logs[member]}


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part or 0) if part.isdigit() else -1, part) for part in _NUMBER.split(path.stem)]
