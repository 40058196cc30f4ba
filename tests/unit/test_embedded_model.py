"""The embedded model's folder: its tokenizer, its files, and how it is made."""

import json
import os
import shutil
import subprocess
import sys
import threading
from hashlib import sha256
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from controller.adapters.embedded_model import ensure
from controller.adapters.embedded_model import model_folder as build_module
from controller.adapters.embedded_model.model_folder import (
    EOS_ID,
    HIDDEN,
    STATES,
    tokenizer,
)

ROOT = Path(__file__).parents[2]
TOKENIZER = tokenizer()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure(tmp_path_factory.mktemp("cache"))


def encode(text: str) -> list[int]:
    return list(TOKENIZER.encode(text).ids)


# -- its words ----------------------------------------------------------------------------


@given(st.text())
@example("The river carries a lantern, doesn't it? 42\r\n\t\x00\x7f 🎉👩‍🚀 naïve e\u0301 \u2028 ")
@example("<|user|>hi<|end|> <|endless")
@example("  two  spaces   and\n\n\nlines  ")
def test_decoding_gives_the_text_back(text: str) -> None:
    assert TOKENIZER.decode(encode(text), skip_special_tokens=False) == text


# -- its files ----------------------------------------------------------------------------


@pytest.mark.long
def test_files_agree_with_each_other(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    generation = json.loads((model / "generation_config.json").read_text())
    saved = Tokenizer.from_file(str(model / "tokenizer.json"))
    weights = load_file(model / "model.safetensors")
    assert config["vocab_size"] == saved.get_vocab_size() == weights["lm_head.weight"].shape[0]
    assert config["eos_token_id"] == generation["eos_token_id"] == EOS_ID
    assert saved.token_to_id("<|end|>") == EOS_ID
    assert sum(path.stat().st_size for path in model.iterdir()) < 60e6
    # Layers leave the channels of the grammar alone.
    written = [name for name in weights if "o_proj" in name or "down_proj" in name]
    assert len(written) == 8
    assert not any(weights[name][HIDDEN - len(STATES) :].any() for name in written)


@pytest.mark.long
def test_the_chat_template_marks_every_role_and_shows_tools_and_their_calls(model: Path) -> None:
    template = jinja2.Environment().from_string((model / "chat_template.jinja").read_text())
    roles = ("system", "user", "assistant", "tool")
    messages: list[dict[str, object]] = [{"role": role, "content": f"{role}?"} for role in roles]
    begin: dict[str, Any] = {"bos_token": "<|begin|>", "raise_exception": pytest.fail}
    expected = "<|begin|>" + "".join(f"<|{role}|>{role}?<|end|>" for role in roles)
    text = template.render(messages=messages, add_generation_prompt=True, **begin)
    assert text == expected + "<|assistant|>"
    find = [{"name": "find"}]
    messages = [{"role": "assistant", "content": None, "tool_calls": find}]
    shown = '[{"name": "find"}]'
    text = template.render(messages=messages, tools=find, **begin)
    assert text == f"<|begin|><|system|>{shown}<|end|><|assistant|>{shown}<|end|>"


# -- how it is made -----------------------------------------------------------------------


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def fail_half_way(folder: Path, _shape: object) -> None:
    (folder / "config.json").write_text("{}")
    raise KeyboardInterrupt


@pytest.mark.process
def test_another_process_makes_the_same_bytes_without_torch(model: Path, tmp_path: Path) -> None:
    script = (
        "import pathlib, sys\n"
        "from controller.adapters.embedded_model import ensure\n"
        "folder = ensure(pathlib.Path(sys.argv[1]))\n"
        "assert not {'torch', 'transformers', 'vllm'} & sys.modules.keys()\n"
    )
    draft = tmp_path / ".building-killed"
    draft.mkdir()
    (draft / "config.json").write_text("{}")  # of a build that was killed
    env = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script, tmp_path], env=env, check=True, timeout=60)
    assert hashes(tmp_path / model.name) == hashes(model)


@pytest.mark.long
def test_a_folder_is_made_whole_or_not_at_all_also_by_racing_builders(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_module, "build", fail_half_way)
    assert ensure(model.parent) == model
    with pytest.raises(KeyboardInterrupt):
        ensure(tmp_path)
    assert [*tmp_path.iterdir()] == []
    both_built = threading.Barrier(2, timeout=30)

    def build(folder: Path, _shape: object) -> None:
        shutil.copytree(model, folder, dirs_exist_ok=True)
        both_built.wait()

    monkeypatch.setattr(build_module, "build", build)
    results: list[Path] = []
    threads = [threading.Thread(target=lambda: results.append(ensure(tmp_path))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [tmp_path / model.name] * 2
    assert [path.name for path in tmp_path.iterdir()] == [model.name]
    assert hashes(results[0]) == hashes(model)
