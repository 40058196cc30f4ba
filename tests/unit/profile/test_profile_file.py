"""The profile's file reads back as it was written, and is written whole or not at all."""

from dataclasses import replace
from pathlib import Path

import pytest

from controller.api.errors import LlumctlError, RefusedError, UsageError
from controller.main.profile import run as profile_run
from controller.model.profile import load_profile
from tests.unit.profile.profile_points import A10, points_of


def test_any_text_and_figure(tmp_path: Path) -> None:
    description, source = "' \\ é # [x] = 3", 'one """\n\ttwo\\\n\x7f three'
    values = {"description": description, "source": source, "prefill_base_s": 1.23456789e-7}
    profile = replace(A10, **profile_run.rounded(values))
    path = tmp_path / f"{profile.name}.toml"
    profile_run.write(path, profile_run.text_of(profile, points_of()), force=True)
    found = load_profile(str(path))
    assert found.description.split() == description.split()
    assert found.source.split() == profile.source.split()
    assert found.prefill_base_s == profile.prefill_base_s


# -- writing ------------------------------------------------------------------------------


def test_no_file_is_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("old")
    with pytest.raises(RefusedError, match="exists already"):
        profile_run.check_target(path, force=False)
    with pytest.raises(RefusedError, match="exists already"):
        profile_run.write(path, "new", force=False)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]
    profile_run.check_target(path, force=True)
    profile_run.write(path, "new", force=True)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["new"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("controller.main.profile.run.os.fsync", fail)
    with pytest.raises(LlumctlError, match="was not written: No space left"):
        profile_run.write(tmp_path / "mine.toml", "text", force=False)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_told_before_anything_is_measured(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    for name, why in (
        ("mine.txt", "does not end in .toml"),
        ("none/mine.toml", "you cannot write into"),
        ("folder.toml", "it is a folder"),
    ):
        with pytest.raises(LlumctlError, match=why):
            profile_run.check_target(tmp_path / name, force=True)


# -- --set --------------------------------------------------------------------------------


def test_figures_that_are_given() -> None:
    given = ["copy_bytes_per_s=10e9", "watermark_ratio = 0", "description=two words"]
    found = {"copy_bytes_per_s": 10e9, "watermark_ratio": 0.0, "description": "two words"}
    assert profile_run.parse_given(given) == found
    for assignments, why in (
        (["copy_bytes_per_s"], "is not of the form key=value"),
        (["copy_bytes=3"], "unknown key 'copy_bytes'; did you mean copy_bytes_per_s?"),
        (["block_size=1\nmax_model_len=2"], "block_size must be of type int, not str"),
        (["block_size=1", "block_size=2"], "block_size is given twice"),
    ):
        with pytest.raises(UsageError) as caught:
            profile_run.parse_given(assignments)
        assert caught.value.message.startswith("--set: ")
        assert why in caught.value.message
