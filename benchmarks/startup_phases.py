"""Where llumctl's start goes: the log lines of its processes that mark a step, by their time."""

import re
from datetime import datetime
from pathlib import Path

from benchmarks.servers import LlumctlServer
from controller.api.state import run_state

# Of the lines that match in any file of that pattern, the last counts: the slowest member.
_MARKS = (
    ("Ray is up", "head.log", r"Started a local Ray instance"),
    ("controller launched", "head.log", r"controller launched"),
    ("members said hello", "controller.log", r"is incarnation"),
    ("vLLM imported by instances", "i-*.log", r"global random seed is set"),
    ("engine built", "i-*.log", r"Initializing a V1 LLM engine"),
    ("model loading", "i-*.log", r"Starting to load model"),
    ("engine ready", "i-*.log", r"init engine"),
    ("instances serve", "controller.log", r"i-\d+ \(incarnation \d+\) serves"),
    ("vLLM imported by frontend", "f-*.log", r"global random seed is set"),
    ("frontend configured", "f-*.log", r"Enabled custom fusions"),
    ("frontend serves", "controller.log", r"f-\d+ \(incarnation \d+\) serves"),
)
PHASES = tuple(name for name, _, _ in _MARKS)
_TIME = re.compile(r"(?:(\d{4})-)?(\d\d)-(\d\d) (\d\d:\d\d:\d\d)(?:,(\d{3}))?")


def phases(server: LlumctlServer) -> dict[str, float]:
    """Seconds from the start of `llumctl up`, by phase; vLLM's own lines have whole seconds."""
    state = run_state.load(server.plan.cluster)
    if state is None:
        return {}
    found = {}
    for name, files, text in _MARKS:
        times_s = [
            seconds
            for file in Path(state.log_dir).glob(files)
            for line in file.read_text("utf-8", "replace").splitlines()
            if re.search(text, line) and (seconds := _line_time_s(line)) is not None
        ]
        if times_s:
            found[name] = max(times_s) - server.started_at_s
    return found


def _line_time_s(line: str) -> float | None:
    """Seconds since the epoch."""
    match = _TIME.search(line)
    if match is None:
        return None
    year, month, day, clock, millis = match.groups()
    text = f"{year or datetime.now().year}-{month}-{day} {clock}.{millis or '000'}"
    return datetime.fromisoformat(text).astimezone().timestamp()
