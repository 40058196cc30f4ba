"""Recorded traffic, replayed: trace files of every format that the simulator reads."""

from pathlib import Path

from controller.api.errors import UsageError
from controller.sim.workload.trace import Trace
from controller.sim.workload.trace_files import TraceError, read_trace


def read(path: Path) -> Trace:
    """Raises UsageError: no such file, no such format, or a line that is none (FILE:LINE)."""
    try:
        return read_trace(path)
    except TraceError as error:
        raise UsageError(f"--trace: {error.message}", error.hint) from error
