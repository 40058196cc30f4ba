"""Reads the files in which people write settings and secrets, and parses settings that people type
as `KEY=VALUE`.

The config file is found, read and parsed here. An error about a setting names its line in the file,
or the variable or flag that set it instead (`Origins`).
"""

import codecs
import os
import re
import shlex
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller.api.errors import UsageError
from controller.api.state import user_files
from controller.api.state.run_state import CLUSTER_NAME
from controller.api.state.user_files import user_folder
from llumctl.config import toml_text
from llumctl.config.toml_text import KeyPath

MAX_BYTES = 1 << 20
DEFAULT = "the default one"
UNNAMED = "default"
"""The name of a cluster that nobody named."""
# Python refuses to convert a longer number, and does not say where the number stands.
_TOO_LONG = re.compile(r"[0-9][0-9_]{4300,}")
_WHERE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


@dataclass(frozen=True)
class ConfigFile:
    path: Path
    text: str
    tables: dict[str, Any]
    is_private: bool = False
    """Whether the file belongs to this user, and nobody else may read or change it."""
    is_changed_by_others: bool = False
    """Whether users other than root and this one may change the file."""

    def line(self, key: KeyPath) -> int:
        return toml_text.scan(self.text).find(key) or 1

    def where(self, key: KeyPath) -> str:
        """`FILE:LINE` of a key."""
        return f"{self.path}:{self.line(key)}"


def default_path(environ: Mapping[str, str]) -> Path:
    return user_folder("XDG_CONFIG_HOME", ".config", environ) / "llumctl" / "config.toml"


def find(flag: Path | None, environ: Mapping[str, str] = os.environ) -> ConfigFile | None:
    """Reads the file that `--config` names, else that of $LLUMCTL_CONFIG, else the default one,
    which may be absent.

    Raises:
        UsageError: the file that was asked for is absent, or the file does not parse.
    """
    origin, path = locate(flag, environ)
    try:
        return read(path, origin)
    except AbsentError:
        if origin == DEFAULT:
            return None
        raise


def locate(flag: Path | None, environ: Mapping[str, str] = os.environ) -> tuple[str, Path]:
    """The path of the config file, and its origin: the flag or the variable that names it, or
    DEFAULT. Only the default file may be absent."""
    return next((origin, path) for origin, path in candidates(flag, environ) if path is not None)


def candidates(
    flag: Path | None, environ: Mapping[str, str] = os.environ
) -> tuple[tuple[str, Path | None], ...]:
    """Everything that may name a config file, each with the path that it names. The first path
    counts."""
    named = environ.get("LLUMCTL_CONFIG")
    return (
        ("--config", flag),
        ("LLUMCTL_CONFIG", Path(named) if named else None),
        (DEFAULT, default_path(environ)),
    )


class AbsentError(UsageError):
    pass


def absent(path: Path, origin: str) -> AbsentError:
    return AbsentError(f"{path}: there is no such config file ({origin})")


def read(path: Path, origin: str) -> ConfigFile:
    """Reads and parses a config file. Raises UsageError, which says, from `origin`, what named the
    file."""
    try:
        raw, found = user_files.read_with_status(path, MAX_BYTES, takes_pipe=True)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise absent(path, origin) from error
    except OSError as error:
        raise UsageError(
            f"{path}: cannot read the config file ({origin}): {error.strerror}",
            f"ls -l {path}",
        ) from error
    text = _decode(path, raw)
    is_own_file = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
    is_private = is_own_file and not stat.S_IMODE(found.st_mode) & 0o077
    others = user_files.is_changed_by_others(found)
    return ConfigFile(path, text, _parse(path, text), is_private, others)


def edit_command(path: Path, line: int) -> str:
    return f"${{EDITOR:-vi}} +{line} {shlex.quote(str(path))}"


def cluster_name(flag: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The name of the cluster that a command is about; `default` if nothing names one."""
    return named_cluster(flag, environ) or UNNAMED


def named_cluster(flag: str | None, environ: Mapping[str, str] = os.environ) -> str | None:
    """The name in `--cluster`, else in $LLUMCTL_CLUSTER_NAME, else in the config file.

    Other settings are not checked, so that `status` and `down` work even if `up` would refuse the
    file.
    """
    if flag is not None:
        return _checked(flag, "--cluster")
    if named := environ.get("LLUMCTL_CLUSTER_NAME"):
        return _checked(named, "LLUMCTL_CLUSTER_NAME")
    config = find(None, environ)
    cluster = config.tables.get("cluster") if config else None
    if config is None or not isinstance(cluster, dict) or "name" not in cluster:
        return None
    return _checked(cluster["name"], config.where(("cluster", "name")))


def _checked(name: object, where: str) -> str:
    if isinstance(name, str) and CLUSTER_NAME.fullmatch(name):
        return name
    raise UsageError(
        f"{where}: {str(name)[:60]!r} is not a cluster name:"
        " 1 to 24 lower-case letters, digits and dashes",
    )


def _decode(path: Path, raw: bytes) -> str:
    raw = raw.removeprefix(codecs.BOM_UTF8)  # some editors put it at the beginning
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UsageError(
            f"{path}:{line}: not UTF-8 (byte 0x{raw[error.start]:02x})",
            f"iconv -f latin1 -t utf-8 {path}",
        ) from error


def _parse(path: Path, text: str) -> dict[str, Any]:
    if line := toml_text.too_deep(text):  # tomllib takes a minute for a name of 50,000 parts
        raise UsageError(
            f"{path}:{line}: a dotted key of more than {toml_text.MAX_KEY_PARTS} parts",
            edit_command(path, line),
        )
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise UsageError(f"{path}:1: nested too deeply") from error
    except ValueError as error:
        raise _syntax_error(path, text, str(error)) from error


def _syntax_error(path: Path, text: str, reason: str) -> UsageError:
    """The error for a text that is not TOML. For a duplicate key, tomllib tells neither the key nor
    its line, so these are found here."""
    duplicate = toml_text.scan(text).duplicate
    if duplicate is not None:
        key, line, first = duplicate
        name = ".".join(map(str, key))
        return UsageError(
            f"{path}:{line}: duplicate key {name} (first on line {first})",
            edit_command(path, line),
        )
    if digits := _TOO_LONG.search(text):
        line = text.count("\n", 0, digits.start()) + 1
        return UsageError(f"{path}:{line}: a number of too many digits", edit_command(path, line))
    found = _WHERE.search(reason)
    last = text.rstrip().count("\n") + 1
    line = int(found.group(1) or last) if found else 1
    return UsageError(
        f"{path}:{line}: not valid TOML: {_WHERE.sub('', reason)}", edit_command(path, line)
    )


class Origins:
    """Where each setting was given: the config file, a variable or a flag. If a setting was given
    several times, the last origin counts, like the last value."""

    def __init__(self, file: ConfigFile | None) -> None:
        self.file = file
        self._names: dict[KeyPath, str] = {}

    def name(self, key: KeyPath, origin: str) -> None:
        self._names[key] = origin

    def given(self, key: KeyPath) -> bool:
        return key[:2] in self._names or self.in_file(key)

    def in_file(self, key: KeyPath) -> bool:
        if self.file is None or key[:2] in self._names:
            return False
        table = self.file.tables.get(str(key[0]))
        return key[1] in table if isinstance(table, dict) and len(key) == 2 else table is not None

    def written(self, key: KeyPath) -> KeyPath:
        """The key as it is spelled in the file, which may have dashes in place of an engine
        argument's underscores."""
        table = self.file.tables.get(str(key[0])) if self.file is not None else None
        if key[:2] in self._names or not isinstance(table, dict) or len(key) < 2:
            return key
        for name in table:
            if name.replace("-", "_") == key[1]:
                return (key[0], name, *key[2:])
        return key

    def flag(self, key: KeyPath) -> bool:
        """Whether the setting was given on the command line."""
        return self._names.get(key[:2], "").startswith("-")

    def of(self, key: KeyPath) -> str:
        """`FILE:LINE`, the variable or the flag that gave the setting; for a default, the dotted
        name of the setting."""
        if key[:2] in self._names:
            return self._names[key[:2]]
        if self.file is not None and key[0] in self.file.tables:
            return self.file.where(key)
        return ".".join(map(str, key))

    def cure(self, key: KeyPath) -> str:
        """A command that leads to the place where the setting can be changed."""
        name = self._names.get(key[:2], "")
        if name.startswith("LLUMCTL_"):
            return f"unset {name}"
        if not name and self.file is not None:
            return edit_command(self.file.path, self.file.line(key))
        return "llumctl up --help"


def read_secret(path: Path, where: str) -> str:
    """The text of a private file. Raises UsageError if the file cannot be read, is open to other
    users, or is empty. The message begins with `where`, the place that named the file."""
    try:
        with user_files.opened(path) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(MAX_BYTES).decode().strip()
    except (OSError, ValueError) as error:
        is_binary = isinstance(error, UnicodeDecodeError)
        reason = "not text" if is_binary else getattr(error, "strerror", None) or str(error)
        raise UsageError(
            f"{where}: cannot read {path}: {reason}",
            f"(umask 077; openssl rand -hex 32 > {path})",
        ) from error
    if mode & 0o077:
        raise UsageError(
            f"{where}: {path} is open to other users (mode {mode:04o})", f"chmod 600 {path}"
        )
    if not text:
        raise UsageError(f"{where}: {path} is empty", f"openssl rand -hex 32 > {path}")
    return text


def parse_assignments(texts: Iterable[str], where: str, example: str) -> dict[str, str]:
    """Reads texts of the form `KEY=VALUE`, without the white space around key and value. Raises
    UsageError, which begins with `where`, for a text of any other form and for a key that is given
    twice."""
    found: dict[str, str] = {}
    for text in texts:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not (key and equals and value) or not text.isprintable():
            raise UsageError(f"{where}: {text[:60]!r} is not of the form KEY=VALUE", example)
        if key in found:
            raise UsageError(f"{where}: {key[:60]} is given twice", example)
        found[key] = value
    return found
