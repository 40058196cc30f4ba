"""Findings on disk: each a JSON file with all that is needed to see it again."""

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.fuzz.case import Case
from tools.fuzz.exchange import Answer
from tools.fuzz.judge import Fault

MAX_FILES_PER_SIGNATURE = 3
SHOWN_BYTES = 2000


@dataclass
class Findings:
    folder: Path
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    files: list[Path] = field(default_factory=list)

    def add(
        self,
        fault: Fault,
        case: Case | None,
        number: int | None = None,
        answer: Answer | None = None,
        shrunk: Case | None = None,
        **more: Any,
    ) -> None:
        """`number`: which case of the seed it is. The first few of a kind are written."""
        self.counts[fault.signature] += 1
        if self.counts[fault.signature] > MAX_FILES_PER_SIGNATURE:
            return
        content = {
            "kind": fault.kind,
            "what": fault.what,
            "seed": self.seed,
            "number": number,
            "answer": answer and describe(answer),
            "shrunk": shrunk and shrunk.to_json(),
            "case": case and case.to_json(),
            **more,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"finding-{len(self.files):03d}-{fault.kind.replace(' ', '-')}.json"
        path = self.folder / name
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        self.files.append(path)

    def is_new(self, fault: Fault) -> bool:
        return fault.signature not in self.counts


def load(path: Path) -> Case:
    """The smallest case of a finding."""
    content = json.loads(path.read_text(encoding="utf-8"))
    found = content["shrunk"] or content["case"]
    if found is None:
        raise SystemExit(f"{path} has no case of its own: {content['kind']}, {content['what']}")
    return Case.from_json(found)


def describe(answer: Answer) -> dict[str, Any]:
    return {
        "status": answer.status,
        "headers": answer.headers,
        "body": answer.body[:SHOWN_BYTES].decode(errors="replace"),
        "num_body_bytes": len(answer.body),
        "is_whole": answer.is_whole,
        "closed": answer.closed,
        "late": answer.late,
        "left": answer.left,
        "error": answer.error,
        "taken_s": round(answer.taken_s, 3),
    }
