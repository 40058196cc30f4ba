"""Says in words what is wrong with a setting: where it stands, what, and the nearest valid key."""

import contextlib
import difflib
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from controller.api.errors import UsageError, WrongSettingError
from controller.api.settings.engine_options import why_refused
from controller.api.settings.setting_values import complaint
from controller.api.settings.settings import OPEN_TABLES, Settings, table_model
from controller.api.settings.table import kinds
from llumctl.config.settings_origin import Origins
from llumctl.config.toml_lines import Path

MAX_SHOWN = 10


def explain(error: ValidationError, origins: Origins) -> UsageError:
    """Tells everything that is wrong, each in a line."""
    found = error.errors(include_url=False)
    told = [_one(details, origins) for details in found]
    if len(told) == 1:
        return told[0]
    lines = [item.message for item in told[:MAX_SHOWN]]
    if len(told) > MAX_SHOWN:
        lines.append(f"and {len(told) - MAX_SHOWN} more")
    hints = [item.hint for item in told if item.hint]
    return UsageError("\n       ".join(lines), hints[0] if hints else "")


def explain_value(error: ValidationError, origin: str, raw: str) -> UsageError:
    """The variable's value cannot become what the setting wants."""
    details = error.errors(include_url=False)[0]
    return UsageError(f"{origin}: {complaint(details, raw)}", f"unset {origin}")


@contextlib.contextmanager
def located(origins: Origins) -> Iterator[None]:
    """What a check inside refuses, is told with the place where the setting was written."""
    try:
        yield
    except WrongSettingError as error:
        key = origins.written(error.key)
        where = origins.of(key)
        prefix = "" if where == ".".join(map(str, key)) else f"{where}: "
        raise UsageError(prefix + error.message, error.hint or origins.cure(key)) from error


def unknown_key(where: str, path: Path) -> UsageError:
    name = ".".join(str(part) for part in path if not isinstance(part, int))
    what = "table" if len(path) == 1 else "key"
    if path[0] == "endpoint" and (why := why_refused(str(path[-1]))):
        return UsageError(f"{where}: {name} is refused: {why}", "llumctl up --help")
    message = f"{where}: unknown {what} {name}"
    if nearest := nearest_key(path):
        message += f"; did you mean {nearest}?"
    table = str(path[0])
    if table not in Settings.model_fields:
        return UsageError(message, f"the tables are {_listed(Settings.model_fields)}")
    return UsageError(message, f"the keys of [{table}] are {_listed(kinds(table_model(table)))}")


def unknown_variable(variable: str, path: Path) -> UsageError:
    message = f"{variable}: there is no such setting"
    table, _, key = nearest_key(path).partition(".")
    if key:
        message += f"; did you mean LLUMCTL_{table.upper()}_{key.upper()}?"
    return UsageError(message, f"unset {variable}      or      llumctl config show")


def nearest_key(path: Path) -> str:
    """Finds the valid table or key that resembles `path` most, '' if none does. A key of that very
    name in another table goes first, then keys of the same table, then any."""
    words = [str(part) for part in path if not isinstance(part, int)]
    dotted = {key: f"{table}.{key}" for table, key in reversed(list(_all_keys()))}
    if words[-1] in dotted:
        return dotted[words[-1]]
    if len(words) > 1 and words[0] in Settings.model_fields:
        own = [key for table, key in _all_keys() if table == words[0]]
        if found := difflib.get_close_matches(words[-1], own, 1):
            return f"{words[0]}.{found[0]}"
    elif found := difflib.get_close_matches(words[0], Settings.model_fields, 1):
        return found[0]
    found = difflib.get_close_matches(words[-1], dotted, 1)
    return dotted[found[0]] if found else ""


def _all_keys() -> Iterator[tuple[str, str]]:
    for table in Settings.model_fields:
        if table not in OPEN_TABLES:
            for key in kinds(table_model(table)):
                yield table, key


def _one(details: ErrorDetails, origins: Origins) -> UsageError:
    path = details["loc"]
    where = origins.of(path)
    if details["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return unknown_key(where, path)
    name = ".".join(str(part) for part in path if not isinstance(part, int))
    prefix = f"{where}: " if where == name else f"{where}: {name} "
    if details["type"] == "missing":
        parent = ".".join(str(part) for part in path[:-1] if not isinstance(part, int))
        return UsageError(f"{where}: {parent} needs the key {path[-1]}", origins.cure(path))
    return UsageError(prefix + complaint(details, details["input"]), origins.cure(path))


def _listed(names: Any) -> str:
    return ", ".join(names)
