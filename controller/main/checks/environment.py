"""Checks the Python environment in which instances are to run (`engine.python`), before anything is
started or restarted with it.

The interpreter itself describes its environment: it runs this module as a program, with the
settings on its standard input. The instances of the environment and the frontends, which stay in
the environment of the cluster, have to understand each other:

    llumctl   has the same messages (`wire_version`), and takes the cluster's settings
    Ray       is the same version, because Ray starts the processes, and so is Python
    vLLM      is a version on which llumctl runs. Its requests and outputs have the same fields, or
              the newer version has more at their end, which msgspec fills with defaults

vLLM is not imported, because that takes seconds. Its structs are read from its sources. Whether its
engine starts is seen by the first instance that gets it.

Touch points of vLLM: v1/engine/__init__.py `EngineCoreRequest`, `EngineCoreOutput`,
`EngineCoreOutputs`.
"""

import ast
import importlib.util
import os
import platform
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from controller.api.errors import LlumctlError, WrongSettingError, one_line
from controller.api.operations.on_cluster import DESCRIBE_TIMEOUT_S
from controller.api.settings.settings import Settings
from controller.api.settings.vllm_options import PYTHON
from controller.main import emulation
from controller.main.checks.preflight import SUPPORTED, check_vllm_version
from controller.main.machine.ray_environment import own_environment
from controller.runtime.messages.codec import wire_version

KEY = ("engine", PYTHON)
DESCRIBE = ("-P", "-m", "controller.main.checks.environment")
MAX_CAUSE_CHARS = 200
STRUCTS = ("EngineCoreRequest", "EngineCoreOutput", "EngineCoreOutputs")
"""Frontends and instances exchange these structs, which are encoded as arrays."""
STRUCTS_FILE = Path("v1", "engine", "__init__.py")


class Environment(BaseModel):
    """What an environment says about itself. `vllm`: empty if no vLLM is installed; `no_vllm`: why
    llumctl does not run on this vLLM; `no_settings`: why llumctl does not take the settings."""

    model_config = ConfigDict(frozen=True)

    python: str
    ray: str
    llumctl: str
    wire: str
    vllm: str = ""
    no_vllm: str = ""
    no_settings: str = ""
    structs: Mapping[str, Sequence[str]] = {}


def check_settings(settings: Settings) -> None:
    """Checks the environment that the settings name, if they name one."""
    if PYTHON in settings.engine:
        runs_vllm = not emulation.is_emulated(settings)
        check_python(settings.engine[PYTHON], settings, runs_vllm=runs_vllm)


def check_python(python: object, settings: Settings, *, runs_vllm: bool) -> None:
    """Raises WrongSettingError unless instances can run with this interpreter. `runs_vllm`: whether
    their engines are vLLM's."""
    path = checked_path(python)
    here, there = describe(settings.model_dump_json()), described(path, settings)
    pip = f"{path} -m pip install"
    for what, mine, its in (
        ("Python", here.python, there.python),
        ("Ray", here.ray, there.ray),
    ):
        if mine != its:
            raise WrongSettingError(
                KEY,
                f"has {what} {its or 'not at all'}, and the cluster runs on {what} {mine}: all"
                f" processes of a cluster need the same version of {what}",
                f"{pip} ray=={mine}" if what == "Ray" else f"python{mine} -m venv ...",
            )
    own = f"llumctl {there.llumctl} in this environment"
    if here.wire != there.wire:
        raise WrongSettingError(
            KEY,
            f"cannot run instances: {own} and llumctl {here.llumctl} of the cluster do not"
            " understand each other's messages",
            f"{pip} llumctl=={here.llumctl}",
        )
    if there.no_settings:
        raise WrongSettingError(
            KEY,
            f"cannot run instances: {own} does not take the cluster's settings:"
            f" {there.no_settings}",
            f"{pip} llumctl=={here.llumctl}",
        )
    if not runs_vllm:
        return
    if there.no_vllm:
        wanted = f"{pip} vllm=={SUPPORTED[-1]}"
        raise WrongSettingError(KEY, f"cannot run instances: {there.no_vllm}", wanted)
    for name, fields in here.structs.items():
        found = there.structs.get(name, ())
        if any(a != b for a, b in zip(fields, found, strict=False)) or not found:
            raise WrongSettingError(
                KEY,
                f"cannot run instances: vLLM {there.vllm} in this environment sends {name} in"
                f" another form than vLLM {here.vllm} of the frontends",
                "docs/upgrading.md: start a second cluster",
            )


def checked_path(python: object) -> Path:
    """The path of the interpreter. Raises WrongSettingError unless it is an interpreter that only
    this user and root can replace."""
    if not isinstance(python, str) or not python.startswith("/"):
        raise WrongSettingError(
            KEY, f"must be the absolute path of a Python interpreter, not {python!r:.80}"
        )
    path = Path(python)
    if path.is_dir():
        raise WrongSettingError(
            KEY, f"is the folder {path}, not a Python interpreter", f"give {path}/bin/python"
        )
    if not path.name.startswith("python"):  # it is run to describe itself, whatever it is
        raise WrongSettingError(KEY, f"{path} is no Python interpreter by its name")
    if not path.is_file() or not os.access(path, os.X_OK):
        why = "cannot be run" if path.is_file() else "does not exist"
        raise WrongSettingError(
            KEY, f"{path} {why}", f"ls -l {path}      or      python3 -m venv ..."
        )
    for part in (path.resolve(), path.parent, path.parent.parent):
        found = part.stat()
        is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
        if found.st_uid not in (os.geteuid(), 0) or (found.st_mode & 0o002 and not is_sticky):
            raise WrongSettingError(
                KEY,
                f"{path} is refused: other users can change {part}, and so what the cluster runs",
                f"ls -ld {part}",
            )
    return path


def described(path: Path, settings: Settings) -> Environment:
    """What the interpreter at `path` says about its environment."""
    hint = f"{path} -m pip install llumctl=={metadata.version('llumctl')}"
    try:
        done = subprocess.run(
            [str(path), *DESCRIBE],
            input=settings.model_dump_json(),
            capture_output=True,
            text=True,
            timeout=DESCRIBE_TIMEOUT_S,
            cwd="/",
            env=own_environment(),
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise WrongSettingError(KEY, f"{path} could not be run: {one_line(error)}") from error
    try:
        return Environment.model_validate_json(done.stdout)
    except ValidationError:
        said = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
        cause = " ".join(said[-1].split())[:MAX_CAUSE_CHARS]
        raise WrongSettingError(
            KEY, f"{path} has no llumctl that can run instances: {cause}", hint
        ) from None


def describe(settings_json: str) -> Environment:
    """What this interpreter says about its environment."""
    no_vllm = no_settings = vllm = ""
    try:
        vllm = check_vllm_version().version
    except LlumctlError as error:
        no_vllm = error.message
    try:
        Settings.model_validate_json(settings_json)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        no_settings = f"{'.'.join(map(str, details['loc']))}: {details['msg']}"
    return Environment(
        python=".".join(platform.python_version_tuple()[:2]),
        ray=metadata.version("ray"),
        llumctl=metadata.version("llumctl"),
        wire=wire_version(),
        vllm=vllm,
        no_vllm=no_vllm,
        no_settings=no_settings,
        structs=_structs(),
    )


def _structs() -> dict[str, list[str]]:
    """The names of the fields of STRUCTS, in order; empty if there is no vLLM."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return {}
    file = Path(next(iter(spec.submodule_search_locations))) / STRUCTS_FILE
    try:
        module = ast.parse(file.read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return {}
    return {
        each.name: [
            field.target.id
            for field in each.body
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        ]
        for each in module.body
        if isinstance(each, ast.ClassDef) and each.name in STRUCTS
    }


if __name__ == "__main__":
    sys.stdout.write(describe(sys.stdin.read()).model_dump_json())
