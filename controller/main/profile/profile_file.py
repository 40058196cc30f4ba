"""A profile's file: its text, with what was measured beside what the profile gives, its writing,
whole or not at all, and the figures that are given instead of measured
(`--set copy_bytes_per_s=10e9`)."""

import contextlib
import json
import os
import secrets
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from controller.api.errors import LlumctlError, RefusedError, UsageError
from controller.main.profile.points import Point, StepPoints
from controller.model.profile import LatencyProfile, checked

EXAMPLE = "llumctl profile --set copy_bytes_per_s=10e9"
GROUPS = ("description", "block_size", "prefill_base_s")
"""Fields before which a file has an empty line, but for the first."""


def check_target(path: Path, *, force: bool) -> None:
    """Refuses, before anything is measured, a file that could not be written or would be
    overwritten."""
    if path.suffix != ".toml":
        raise UsageError(f"-o: {path} does not end in .toml, as a profile's file must")
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        why = "it is a folder" if path.is_dir() else f"you cannot write into {path.parent}/"
        raise LlumctlError(f"{path} cannot be written: {why}", "llumctl profile -o FILE")
    if os.path.lexists(path) and not force:
        raise _is_there(path)


def write(path: Path, text: str, *, force: bool) -> None:
    """Raises RefusedError if there is a file by now and not `force`, LlumctlError if it cannot be
    written; then nothing is left of it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if force:
            temporary.replace(path)
        else:
            path.hardlink_to(temporary)  # in one step, and never over another file
    except FileExistsError as error:
        raise _is_there(path) from error
    except OSError as error:
        raise LlumctlError(
            f"{path} was not written: {error.strerror}", "llumctl profile -o FILE"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def text_of(profile: LatencyProfile, points: StepPoints) -> str:
    lines: list[str] = []
    for field in fields(profile):
        if field.name != "name":
            lines += [""] if lines and field.name in GROUPS else []
            lines.append(f"{field.name} = {_toml(getattr(profile, field.name))}")
    lines += ["", *(f"# {line}".rstrip() for line in _point_lines(profile, points))]
    return "\n".join(lines) + "\n"


def rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Floats to four digits: a file has no more, and errors are those of the file."""
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in values.items()}


def _point_lines(profile: LatencyProfile, points: StepPoints) -> Iterator[str]:
    yield "Measured, then what the profile gives:"
    for kind, found in points.by_kind():
        for point in found:
            figures = f"{point.time_s * 1e3:10.3f} ms {point.fitted_s(profile) * 1e3:10.3f} ms"
            yield f"{kind:<8}{work(point):<42}{figures} {point.error(profile):+7.1%}"


def work(point: Point) -> str:
    """`1,024 tokens in 2 steps`, or `8 decoding, 4,096 tokens`."""
    steps = point.steps
    num_prefill = sum(step.num_prefill_tokens for step in steps)
    num_decoding, num_context = steps[0].num_decoding, steps[0].num_context_tokens
    decodes = f"{num_decoding} decoding, {num_context:,} tokens"
    if not num_prefill:
        return decodes
    if num_decoding:
        return f"{num_prefill:,} prefilled; {decodes}"
    return f"{num_prefill:,} tokens in {len(steps)} step{'s' * (len(steps) > 1)}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return f"{value:.4g}" if isinstance(value, float) else str(value)
    if "\n" not in value:
        return f'"{_inside(value)}"'
    return (
        '"""\n'
        + "\n".join(_inside(line) for line in value.removesuffix("\n").split("\n"))
        + '\n"""'
    )


def _inside(line: str) -> str:
    """Of a TOML string: as JSON writes it, and without the one control character that JSON lets
    stand."""
    return json.dumps(line, ensure_ascii=False)[1:-1].replace("\x7f", "\\u007f")


def _is_there(path: Path) -> RefusedError:
    return RefusedError(
        f"{path} is there already", "llumctl profile -o FILE      or      llumctl profile --force"
    )


def parse_given(assignments: Iterable[str]) -> dict[str, Any]:
    """Values as TOML writes them; a text needs no quotes. Raises UsageError."""
    found: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, raw = (part.strip() for part in assignment.partition("="))
        if not equals or not key:
            raise UsageError(f"--set: {assignment[:60]!r} is not of the form key=value", EXAMPLE)
        if key in found:
            raise UsageError(f"--set: {key} is given twice", EXAMPLE)
        try:
            found[key] = checked(key, _parsed(raw), "--set")
        except ValueError as error:
            raise UsageError(str(error), EXAMPLE) from error
    return found


def _parsed(raw: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except (tomllib.TOMLDecodeError, RecursionError):
        return raw
    return parsed["value"] if len(parsed) == 1 else raw
