"""Effective settings as text: a config file that says the same, or a document for machines.

Secrets are hidden: an engine argument whose name says that it is one, at any depth.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from controller.api.settings.settings import Settings
from llumctl.config import toml_text
from llumctl.config.config_file import Origins
from llumctl.config.settings import engine_key
from llumctl.config.toml_text import KeyPath
from llumctl.text import output
from llumctl.text.output import Format

SCHEMA_VERSION = 1
HIDDEN = "(hidden)"
_SECRET = re.compile(
    r".*(token|secret|password|passwd|credentials?|(api|access|auth|private)[_-]?key)"
)


def toml(settings: Settings, origins: Origins | None) -> str:
    """With origins, a comment behind each value says where it comes from.

    A value that is not set is a comment itself: TOML has no null.
    """
    lines: list[str] = []
    for table, content in _hidden(settings.model_dump()).items():
        if isinstance(content, Mapping):
            lines += ["", f"[{table}]", *_pairs((table,), content, origins)]
        else:
            for index, item in enumerate(content):
                lines += ["", f"[[{table}]]", *_pairs((table, index), item, origins)]
    return "\n".join(lines[1:])


def document(settings: Settings, origins: Origins | None, output_format: Format) -> str:
    """JSON or YAML: the settings, and with origins those by dotted name."""
    tables = _hidden(settings.model_dump(mode="json"))
    whole: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "settings": tables}
    if origins is not None:
        whole["origins"] = {
            ".".join(map(str, path)): origin(path, origins) for path in _paths(tables)
        }
    if output_format is Format.JSON:
        return output.json_text(whole, indent=2)
    import yaml

    text: str = yaml.safe_dump(whole, sort_keys=False, allow_unicode=False)
    return text.rstrip("\n")


def origin(path: KeyPath, origins: Origins) -> str:
    """`default`, `FILE:LINE` or a variable."""
    table, *inner, name = path
    if table == "engine" and not origins.given(path):
        written: Mapping[str, Any] = origins.file.tables["engine"] if origins.file else {}
        return origins.of((table, next(key for key in written if engine_key(key) == name)))
    if inner and origins.file is not None and table in origins.file.tables:
        (index,) = inner
        given = name in origins.file.tables[str(table)][index]
    else:
        given = not inner and origins.given(path)
    return origins.of(path) if given else "default"


def _pairs(path: KeyPath, content: Mapping[str, Any], origins: Origins | None) -> Iterator[str]:
    for name, value in content.items():
        try:
            line = f"{toml_text.key(name)} = {toml_text.value(value)}"
        except TypeError:
            line = f"# {toml_text.key(name)} = {json.dumps(value, default=str)}"
        yield line if origins is None else f"{line}  # {origin((*path, name), origins)}"


def _paths(tables: Mapping[str, Any]) -> Iterator[KeyPath]:
    for table, content in tables.items():
        if isinstance(content, Mapping):
            yield from ((table, name) for name in content)
        else:
            for index, item in enumerate(content):
                yield from ((table, index, name) for name in item)


def _hidden(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if _is_secret(name, inner) else _hidden(inner)
            for name, inner in value.items()
        }
    return [_hidden(inner) for inner in value] if isinstance(value, list | tuple) else value


def _is_secret(name: str, value: object) -> bool:
    return isinstance(value, str) and _SECRET.fullmatch(name.lower()) is not None
