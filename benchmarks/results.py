"""Where figures go: one JSON file per run beside the table that was printed."""

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import machine
from benchmarks.servers import RESULTS


def write(kind: str, figures: dict[str, Any]) -> Path:
    """`kind` and the time give the file its name."""
    now = datetime.now().astimezone()
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{kind}-{now:%Y-%m-%d-%H%M%S}.json"
    content = {"date": now.isoformat(timespec="seconds"), "machine": machine.describe(), **figures}
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


def make_console() -> Console:
    """Wide enough for the tables where there is no terminal."""
    return Console(soft_wrap=True, width=None if sys.stdout.isatty() else 120)


def spread(values: list[float], form: str = ".2f") -> str:
    """`low-high`."""
    return f"{min(values):{form}}..{max(values):{form}}"
