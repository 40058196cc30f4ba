"""Folders of models that hold nothing: a folder of one's own, and the hub's cache."""

import json
from pathlib import Path
from typing import Any

from controller.adapters.embedded_model.model_folder import config

HUB_MODEL = "some/model"


def sparse(path: Path, num_bytes: int) -> None:
    with path.open("wb") as file:
        file.truncate(num_bytes)


def model_folder(folder: Path, weight_bytes: int = 0, **fields: Any) -> str:
    (folder / "config.json").write_text(json.dumps(config() | fields))
    sparse(folder / "model.safetensors", weight_bytes)
    return str(folder)


def config_file(folder: Path, **fields: Any) -> Path:
    return Path(model_folder(folder, **fields)) / "config.json"


def cached(cache: Path, sizes: dict[str, int] | None = None, **fields: Any) -> Path:
    """The hub's cache as a download of HUB_MODEL leaves it, with a config.json and these files."""
    repo = cache / "models--some--model"
    snapshot = repo / "snapshots" / "abc"
    snapshot.mkdir(parents=True, exist_ok=True)
    (repo / "refs").mkdir(exist_ok=True)
    (repo / "refs" / "main").write_text("abc")
    (snapshot / "config.json").write_text(json.dumps(config() | fields))
    for name, size in (sizes or {}).items():
        sparse(snapshot / name, size)
    return snapshot
