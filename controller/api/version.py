"""The version of this llumctl, and the commands that install another one or its engines."""

from pathlib import Path

CPU_WHEELS = "https://download.pytorch.org/whl/cpu"
"""PyTorch's index of CPU builds, which PyPI does not have."""


def own_version() -> str:
    """The installed version; empty if llumctl runs from a folder that is not installed."""
    from importlib import metadata  # here: most commands never ask

    try:
        return metadata.version("llumctl")
    except metadata.PackageNotFoundError:
        return ""


def is_checkout() -> bool:
    """Whether this code lies in a checkout, where `make` works; a wheel brings no Makefile."""
    root = Path(__file__).parents[2]
    return (root / "Makefile").is_file() and (root / "pyproject.toml").is_file()


def upgrade_command() -> str:
    if is_checkout():
        return "git pull      then      make install"
    return "pip install --upgrade llumctl"


def engines_command(*, gpu: bool = False) -> str:
    """Installs vLLM and torch beside this llumctl."""
    if is_checkout():
        return "make install"
    if gpu:
        return "pip install 'llumctl[gpu]'"
    return f"pip install 'llumctl[cpu]' --extra-index-url {CPU_WHEELS}"


def extra_command(extra: str) -> str:
    """Installs the packages of an extra beside this llumctl."""
    return "make install" if is_checkout() else f"pip install 'llumctl[{extra}]'"
