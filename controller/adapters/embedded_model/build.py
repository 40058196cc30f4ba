"""Writes the model folder in the layout of Hugging Face."""

import json
import shutil
from pathlib import Path

from safetensors.numpy import save_file

from controller.adapters.embedded_model.architecture import config, generation_config
from controller.adapters.embedded_model.tokenizer import tokenizer, tokenizer_config
from controller.adapters.embedded_model.weights import tensors

_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def build(folder: Path) -> None:
    """Fills an existing, empty folder (about 0.7 s, 37 MB). The same bytes every time."""
    documents = {
        "config.json": config(),
        "generation_config.json": generation_config(),
        "tokenizer_config.json": tokenizer_config(),
    }
    for name, content in documents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    shutil.copyfile(_TEMPLATE, folder / _TEMPLATE.name)
    tokenizer().save(str(folder / "tokenizer.json"))
    save_file(tensors(), folder / "model.safetensors", metadata={"format": "pt"})
