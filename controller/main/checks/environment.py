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
import grp
import importlib.util
import os
import platform
import pwd
import shlex
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from controller.api.errors import LlumctlError, WrongSettingError, one_line
from controller.api.operations.on_cluster import DESCRIBE_TIMEOUT_S
from controller.api.settings import PYTHON
from controller.api.settings.settings import Settings
from controller.api.text.hints import checkout_folder
from controller.main import emulation
from controller.main.checks.preflight import check_vllm_version, installed, vllm_command
from controller.main.machine.ray_environment import own_environment
from controller.runtime.messages.codec import wire_version

KEY = ("engine", PYTHON)
DESCRIBE = ("-P", "-m", "controller.main.checks.environment")
MAX_CAUSE_CHARS = 200
PACKAGE_FOLDERS = ("lib", "lib/python3*", "lib/python3*/site-packages")
"""The folders below an environment from which its processes import."""
STRUCTS = ("EngineCoreRequest", "EngineCoreOutput", "EngineCoreOutputs")
"""Frontends and instances exchange these structs, which are encoded as arrays."""
STRUCTS_FILE = Path("v1", "engine", "__init__.py")


class Environment(BaseModel):
    """What an environment says about itself. `ray`, `vllm`: the version, empty if it is not
    installed; `distribution`: the name under which vLLM is installed. `torch`: empty also where
    an older llumctl does not say it. `no_vllm`: why llumctl does not run on this vLLM;
    `no_settings`: why llumctl does not take the settings."""

    model_config = ConfigDict(frozen=True)

    python: str
    ray: str
    llumctl: str
    wire: str
    vllm: str = ""
    distribution: str = ""
    torch: str = ""
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
    own_llumctl = f"{pip} {_source()}"
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
            own_llumctl,
        )
    if there.no_settings:
        raise WrongSettingError(
            KEY,
            f"cannot run instances: {own} does not take the cluster's settings:"
            f" {there.no_settings}",
            own_llumctl,
        )
    if not runs_vllm:
        return
    if there.no_vllm:
        wanted = vllm_command(here.distribution or "vllm", newest=True)
        raise WrongSettingError(
            KEY, f"cannot run instances: {there.no_vllm}", f"{path} -m {wanted}"
        )
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
    """The path of the interpreter. Raises WrongSettingError if the interpreter is none by its name,
    or if other users can change its file, one of the two folders above it, or the folders with the
    packages of its environment."""
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
    environment = path.parent.parent
    packages = (each for below in PACKAGE_FOLDERS for each in environment.glob(below))
    for part in (path.resolve(), path.parent, environment, *packages):
        if _is_changed_by_others(part.stat()):
            raise WrongSettingError(
                KEY,
                f"{path} is refused: other users can change {part}, and so what the cluster runs",
                f"ls -ld {part}      then      chmod go-w {part}",
            )
    return path


def _is_changed_by_others(found: os.stat_result) -> bool:
    """Whether users other than root and this one may change the file, or what is in the folder."""
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & stat.S_IWOTH:
        return True
    return bool(found.st_mode & stat.S_IWGRP) and _has_others(found.st_gid)


def _has_others(group_id: int) -> bool:
    """Whether users other than root and this one are in the group. Often each user has a group
    alone, which may change all of the user's files."""
    users = pwd.getpwall()
    own = {each.pw_name for each in users if each.pw_uid in (os.geteuid(), 0)}
    try:
        members = set(grp.getgrgid(group_id).gr_mem)
    except KeyError:
        return True
    return bool((members | {each.pw_name for each in users if each.pw_gid == group_id}) - own)


def described(path: Path, settings: Settings) -> Environment:
    """What the interpreter at `path` says about its environment."""
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
            KEY,
            f"{path} has no llumctl that can run instances: {cause}",
            f"{path} -m pip install {_source()}",
        ) from None


def _source() -> str:
    """What pip installs, to get this very llumctl in another environment."""
    checkout = checkout_folder()
    version = f"llumctl=={metadata.version('llumctl')}"
    return version if checkout is None else shlex.quote(str(checkout))


def describe(settings_json: str) -> Environment:
    """What this interpreter says about its environment."""
    no_vllm = no_settings = vllm = distribution = ""
    try:
        distribution, vllm = check_vllm_version()
    except LlumctlError as error:
        no_vllm = error.message
    try:
        Settings.model_validate_json(settings_json)
    except ValidationError as error:
        details = error.errors(include_url=False)[0]
        no_settings = f"{'.'.join(map(str, details['loc']))}: {details['msg']}"
    return Environment(
        python=".".join(platform.python_version_tuple()[:2]),
        ray=installed("ray") or "",
        llumctl=metadata.version("llumctl"),
        wire=wire_version(),
        vllm=vllm,
        distribution=distribution,
        torch=installed("torch") or "",
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
