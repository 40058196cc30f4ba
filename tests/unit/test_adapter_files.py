"""Copies of LoRA adapters: shared by processes, never changed, and gone with the last user."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from controller.adapters.files.adapter_files import AdapterCopies, facts_of
from controller.api.errors import UsageError
from controller.api.settings.settings import Settings
from controller.core.fleet.adapters import Adapter
from controller.main.checks.adapters import planned_adapters
from tests.adapters import RANK, make_adapter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_adapter(tmp_path / "sql", 1)


def adapter_of(folder: Path, number: int = 1) -> Adapter:
    facts = facts_of(folder)
    return Adapter(f"a{number}", number, str(folder), facts.digest, facts.rank)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_digest_is_of_the_files_that_engines_read(folder: Path) -> None:
    before = facts_of(folder)
    assert (len(before.digest), before.rank) == (64, RANK)
    (folder / "README.md").write_text("hello")
    assert facts_of(folder) == before
    with (folder / "adapter_model.safetensors").open("ab") as file:
        file.write(b"\0")
    assert facts_of(folder).digest != before.digest


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (lambda f: (f / "adapter_config.json").unlink(), "has no adapter_config.json"),
        (lambda f: (f / "adapter_model.safetensors").unlink(), "has none of adapter_model.safe"),
        (lambda f: (f / "adapter_config.json").write_text("{"), "not the configuration of a LoRA"),
        (lambda f: (f / "adapter_config.json").write_text("[]"), "not the configuration of a LoRA"),
        (lambda f: (f / "adapter_config.json").write_text('{"r": "8"}'), "the ranks are ['8']"),
        (lambda f: (f / "adapter_config.json").write_text('{"r": 0}'), "the ranks are [0]"),
        (lambda f: f.rename(f.parent / "other"), "there is no folder"),
    ],
)
def test_what_is_no_adapter(folder: Path, spoil: Callable[[Path], object], told: str) -> None:
    spoil(folder)
    with pytest.raises(ValueError, match=told.replace("[", r"\[")):
        facts_of(folder)


def test_a_rank_of_single_modules_counts(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"r": 8, "rank_pattern": {"v_proj": 32}}')
    assert facts_of(folder).rank == 32


def test_a_copy_stays_as_it_is_until_the_last_user_drops_it(folder: Path, tmp_path: Path) -> None:
    adapter, wanted = adapter_of(folder), files(folder)
    one, other = (AdapterCopies(tmp_path / "copies") for _ in range(2))
    copy = Path(one.fetch(adapter))
    (folder / "adapter_config.json").write_text('{"r": 4}')
    assert Path(other.fetch(adapter)) == copy
    assert files(copy) == wanted
    one.drop(adapter)
    assert files(copy) == wanted
    other.drop(adapter)
    assert not copy.exists()
    with pytest.raises(ValueError, match="other files than those that were loaded"):
        one.fetch(adapter)
    assert not [path for path in copy.parent.iterdir() if path.is_dir()]


def test_two_adapters_of_one_content_share_a_copy(folder: Path, tmp_path: Path) -> None:
    copies, adapter = AdapterCopies(tmp_path / "copies"), adapter_of(folder)
    same = replace(adapter, name="b", number=2)
    copy = Path(copies.fetch(adapter))
    assert Path(copies.fetch(same)) == copy
    copies.drop(adapter)
    assert files(copy) == files(folder)
    copies.drop(same)
    assert not copy.exists()


def test_many_who_fetch_and_drop_at_once_never_miss_a_file(folder: Path, tmp_path: Path) -> None:
    adapter, wanted, wrong = adapter_of(folder), files(folder), list[object]()

    def use() -> None:
        copies = AdapterCopies(tmp_path / "copies")
        for _ in range(40):
            if (found := files(Path(copies.fetch(adapter)))) != wanted:
                wrong.append(found.keys())
            copies.drop(adapter)

    threads = [threading.Thread(target=use) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert not [path for path in (tmp_path / "copies").iterdir() if path.is_dir()]


def _hold(copies: Path, adapter: Adapter, told: "multiprocessing.connection.Connection") -> None:
    AdapterCopies(copies).fetch(adapter)
    told.send("here")
    signal.pause()


def test_a_process_that_dies_keeps_no_copy(folder: Path, tmp_path: Path) -> None:
    adapter, copies = adapter_of(folder), AdapterCopies(tmp_path / "copies")
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_hold, args=(tmp_path / "copies", adapter, there)
    )
    process.start()
    assert here.recv() == "here"
    copy = Path(copies.fetch(adapter))
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    copies.drop(adapter)
    assert not copy.exists()


def test_what_a_killed_process_left_half_done_is_no_copy(folder: Path, tmp_path: Path) -> None:
    adapter, home = adapter_of(folder), tmp_path / "copies"
    for suffix in ("made", "gone"):
        (home / f"{adapter.digest}.{suffix}").mkdir(parents=True)
    copies = AdapterCopies(home)
    assert files(Path(copies.fetch(adapter))) == files(folder)
    copies.drop(adapter)
    assert not [path for path in home.iterdir() if path.is_dir()]


def test_the_next_cluster_removes_what_a_killed_one_left(folder: Path, tmp_path: Path) -> None:
    """And not what another one uses."""
    adapter = adapter_of(folder)
    killed, lives = (AdapterCopies(tmp_path / name / "adapters") for name in ("run-a", "run-b"))
    left, used = (Path(each.fetch(adapter)) for each in (killed, lives))
    killed._locks.pop(1).close()
    new = AdapterCopies(tmp_path / "run-c" / "adapters")
    new.fetch(adapter)
    assert not left.exists()
    assert files(used) == files(folder)
    for each in (lives, new):
        each.drop(adapter)


# -- before a start ------------------------------------------------------------------------

ENABLED = {"enable_lora": True, "max_lora_rank": RANK}


def test_the_adapters_of_the_configuration_are_numbered(folder: Path, tmp_path: Path) -> None:
    other = make_adapter(tmp_path / "other", 2)
    settings = Settings(adapters={"sql": str(folder), "other": str(other)})
    one, two = planned_adapters(settings, ENABLED)
    assert (one.name, one.number, one.digest) == ("sql", 1, facts_of(folder).digest)
    assert (two.name, two.number, two.digest) == ("other", 2, facts_of(other).digest)


@pytest.mark.parametrize(
    ("settings", "args", "told", "hint"),
    [
        ({}, {}, "started without LoRA", "--engine-arg enable_lora=true"),
        (
            {},
            ENABLED | {"max_lora_rank": 1},
            "rank is 8, and the engines take 1",
            "max_lora_rank=8",
        ),
        ({"cluster": {"engine": "emulated"}}, ENABLED, "emulated engines compute nothing", ""),
        ({"endpoint": {"served_model_name": ("sql",)}}, ENABLED, "model itself has this name", ""),
        ({"adapters": {"sql": "/nope"}}, ENABLED, "there is no folder /nope", "ls /nope"),
        ({"adapters": {"text": "/nope"}}, ENABLED, "all chats with a part of this type", "OTHER"),
    ],
)
def test_an_adapter_that_cannot_be_used_is_refused_before_anything_starts(
    folder: Path, settings: dict[str, object], args: dict[str, object], told: str, hint: str
) -> None:
    checked = Settings.model_validate({"adapters": {"sql": str(folder)}} | settings)
    with pytest.raises(UsageError, match=told) as caught:
        planned_adapters(checked, args)
    assert caught.value.message.startswith("the LoRA adapter ")
    assert hint in caught.value.hint
