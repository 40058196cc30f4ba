"""`llumctl set` against the real control API: what is shown, changed and saved; and the grace time
that `down` asks for."""

import asyncio
import json
import os
import tomllib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.api.client import ControlClient
from controller.api.settings.setting_values import live_settings
from controller.api.settings.settings import Settings
from controller.api.state import run_state
from controller.main import down
from llumctl.app import run
from tests.unit.cli_support import remember
from tests.unit.control.control_support import TOKEN, Listener, listening

Captured = pytest.CaptureFixture[str]


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    async with listening(1) as (served, _):
        remember(served.url, token=TOKEN)
        yield served


async def llumctl(*arguments: str, code: int = 0) -> None:
    assert await asyncio.to_thread(run, ["set", *arguments]) == code, arguments


@pytest.mark.usefixtures("listener")
async def test_settings_are_shown(capsys: Captured) -> None:
    await llumctl()
    captured = capsys.readouterr()
    header, *rows = captured.out.splitlines()
    assert header.split() == ["KEY", "VALUE", "DEFAULT", "MEANING"]
    assert [row.split()[0] for row in rows] == list(live_settings(Settings()))
    assert "endpoint.request_timeout_s none none" in " ".join(" ".join(rows).split())
    assert captured.err == "revision 0\n"
    await llumctl("scheduler.hold_timeout_s", "-o", "json")
    found = json.loads(capsys.readouterr().out)
    assert (found["revision"], len(found["settings"])) == (0, 1)
    assert found["settings"][0].items() >= {"key": "scheduler.hold_timeout_s", "value": 30}.items()
    await llumctl("migration.max_moves", "-o", "wide")
    assert "default  0 to 1024" in capsys.readouterr().out
    await llumctl("migration.max_moves", "-o", "name")
    assert capsys.readouterr() == ("migration.max_moves\n", "")
    await llumctl("migration.max_move", code=2)
    assert "did you mean migration.max_moves?" in capsys.readouterr().err


@pytest.mark.usefixtures("listener")
async def test_a_table_is_shown_with_all_its_keys(capsys: Captured) -> None:
    keys = list(live_settings(Settings()))
    for given in ("migration", "autoscale", "priority", "priority.high", "migration."):
        below = [key for key in keys if key.startswith(f"{given.rstrip('.')}.")]
        assert len(below) > 2
        await llumctl(given, "-o", "name")
        assert capsys.readouterr() == ("\n".join(below) + "\n", "")
        await llumctl(given)
        assert [row.split()[0] for row in capsys.readouterr().out.splitlines()[1:]] == below
        await llumctl(given, "-o", "json")
        found = json.loads(capsys.readouterr().out)["settings"]
        assert [each["key"] for each in found] == below
        assert all("value" in each for each in found)
    for wrong, nearest in (("migratio", "; did you mean migration?"), ("migration.max", "")):
        await llumctl(wrong, code=2)
        error, hint = capsys.readouterr().err.splitlines()
        assert error.startswith(f"error: KEY: '{wrong}' is not a setting of a running cluster")
        assert nearest in error
        assert hint == "try:   llumctl set"


async def test_settings_are_changed(listener: Listener, capsys: Captured) -> None:
    changes = ("migration.max_moves=2", "migration.max_bytes_per_s=0.5")
    listener.cluster.report("i-0", num_free_blocks=50, num_running=10)
    await llumctl("migration.destination_above_steps=100", "--dry-run", code=10)
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].split() == ["KEY", "PREVIOUS", "WOULD-BE"]
    assert captured.err == "sources: none\ndestinations: none; no more: i-0\n"
    assert listener.cluster.controller.keeper.spec.revision == 0
    await llumctl(*changes, "-m", "less noise", "--if-revision", "0")
    captured = capsys.readouterr()
    assert [line.split() for line in captured.out.splitlines()] == [
        ["KEY", "PREVIOUS", "NOW"],
        ["migration.max_moves", "4", "2"],
        ["migration.max_bytes_per_s", "0", "0.5"],
    ]
    assert captured.err == "revision 1\n"
    assert listener.cluster.controller.live.rescheduling.max_bytes_per_s == 0.5
    assert '"reason": "less noise"' in listener.audit.path.read_text()
    await llumctl(*changes)
    assert capsys.readouterr() == ("", "nothing to change\n")
    await llumctl("endpoint.request_timeout_s=5", "-o", "json")
    (change,) = json.loads(capsys.readouterr().out)["changes"]
    known = {"key": "endpoint.request_timeout_s", "previous": None, "value": 5.0}
    assert change.items() >= known.items()
    await llumctl("migration.max_moves=-1", code=2)
    told = "migration.max_moves must be at least 0, not -1"
    assert told in capsys.readouterr().err


@pytest.mark.usefixtures("listener")
async def test_down_takes_the_grace_time_as_it_was_set_last() -> None:
    state = run_state.load("default")
    assert state is not None
    await llumctl("scheduler.grace_s=2.5")
    assert await asyncio.to_thread(down.present_grace_s, state) == 2.5
    gone = replace(state, control_url="http://127.0.0.1:1", grace_s=7.0)
    assert await asyncio.to_thread(down.present_grace_s, gone) == 7.0


# -- what was tuned is kept ---------------------------------------------------------------

MOVES = "migration.max_moves=2"
CONFIG = """\
# Ours.
[migration]
max_moves = 4   # as it was
"""


@pytest.fixture
def config(listener: Listener, tmp_path: Path) -> Path:
    """The file that the cluster was started with."""
    file = tmp_path / "ours.toml"
    file.write_text(CONFIG)
    file.chmod(0o640)
    run_state.save(replace(remember(listener.url, token=TOKEN), config_file=str(file)))
    return file


async def test_it_is_saved_in_the_file_of_the_cluster(
    listener: Listener, config: Path, capsys: Captured
) -> None:
    changes = ("migration.max_moves=2", "migration.max_bytes_per_s=5", "--save")
    await llumctl(*changes, "--dry-run", code=10)
    was, now = "max_moves = 4   # as it was", "max_moves = 2   # as it was"
    lines = [f"-{was}", f"+{now}", "+max_bytes_per_s = 5.0"]
    assert capsys.readouterr().err.splitlines() == [f"would be saved in {config}:", *lines]
    assert config.read_text() == CONFIG
    assert listener.cluster.controller.live.rescheduling.max_moves == 4
    await llumctl(*changes)
    assert capsys.readouterr().err.splitlines() == ["revision 1", f"saved in {config}:", *lines]
    assert listener.cluster.controller.live.rescheduling.max_moves == 2
    assert config.read_text() == CONFIG.replace("= 4", "= 2") + "max_bytes_per_s = 5.0\n"
    assert config.stat().st_mode & 0o777 == 0o640
    assert list(config.parent.glob(".ours*")) == []


async def test_what_was_set_before_is_saved_later(config: Path, capsys: Captured) -> None:
    """The cluster changes no more, its file does."""
    await llumctl("migration.max_moves=2")
    await llumctl("--toml")
    captured = capsys.readouterr()
    assert captured.out.endswith("[migration]\nmax_moves = 2\n")
    assert captured.err.endswith(f"these differ from {config}\n")
    await llumctl("migration.max_moves=2", "--save")
    assert "max_moves = 2   # as it was" in config.read_text()
    capsys.readouterr()
    await llumctl("--toml")
    assert capsys.readouterr() == ("", f"nothing differs from {config}\n")


async def test_priority_levels_come_all_or_none(config: Path, capsys: Captured) -> None:
    await llumctl("priority.high.target_load_tokens=800", "--save")
    capsys.readouterr()
    config.write_text(CONFIG)
    await llumctl("--toml")
    levels = tomllib.loads(capsys.readouterr().out)["priority"]
    assert levels == [
        {"name": "normal", "rank": 0},
        {"name": "high", "rank": 1, "target_load_tokens": 800},
    ]
    await llumctl("priority.high.target_load_tokens=800", "--save")
    assert tomllib.loads(config.read_text())["priority"] == levels
    await llumctl("priority.high.target_load_tokens=none", "--save")
    assert tomllib.loads(config.read_text())["priority"][1] == {"name": "high", "rank": 1}
    assert config.read_text().startswith(CONFIG)


@pytest.mark.usefixtures("listener")
async def test_what_it_prints_is_a_configuration_file(tmp_path: Path, capsys: Captured) -> None:
    """Without a file, it is what differs from the defaults."""
    await llumctl("scheduler.policy=infaas++", "endpoint.request_timeout_s=5")
    capsys.readouterr()
    await llumctl("--toml")
    captured = capsys.readouterr()
    assert "the defaults (there is no configuration file)" in captured.err
    other = tmp_path / "other.toml"
    other.write_text(captured.out)
    await llumctl("--toml", "--config", str(other))
    assert capsys.readouterr().err == f"nothing differs from {other}\n"
    await llumctl("scheduler.policy", "--toml")
    assert capsys.readouterr().out == '[scheduler]\npolicy = "infaas++"\n'


async def test_a_link_stays_one_and_a_variable_that_wins_is_told(
    config: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLUMCTL_MIGRATION_MAX_MOVES", "9")
    target = config.rename(config.with_name("target.toml"))
    config.symlink_to(target)
    await llumctl("migration.max_moves=2", "--save")
    assert config.is_symlink()
    assert "max_moves = 2" in target.read_text()
    told = capsys.readouterr().err
    assert f"saved in {target}:" in told
    assert "LLUMCTL_MIGRATION_MAX_MOVES is set here, and overrides" in told


async def test_what_cannot_be_saved_is_not_set(
    listener: Listener, config: Path, capsys: Captured
) -> None:
    one_level, high = "[[priority]]\nname = 'one'\nrank = 0\n", "priority.high.target_load_tokens=1"
    for text, change, code, told in (
        ("\nmigration = { enabled = true }\n", MOVES, 5, "ours.toml:2: migration stands in braces"),
        (one_level, high, 5, "it has no priority level 'high'"),
        ("[models.a]\nmigration = {max_moves = 9}\n", MOVES, 5, "[models.a] has a migration"),
        ("[migration\n", MOVES, 2, "ours.toml:1: not valid TOML"),
        (None, MOVES, 2, "there is no such config file (the cluster was started with it)"),
    ):
        config.unlink() if text is None else config.write_text(text)
        await llumctl(change, "--save", code=code)
        assert told in capsys.readouterr().err
    assert listener.cluster.controller.keeper.spec.revision == 0


@pytest.mark.usefixtures("listener")
async def test_without_a_file_nothing_is_saved(capsys: Captured) -> None:
    await llumctl("migration.max_moves=2", "--save", code=2)
    file = Path(os.environ["XDG_CONFIG_HOME"]) / "llumctl" / "config.toml"
    assert f"{file}: there is no configuration file to save in" in capsys.readouterr().err


async def test_a_file_that_is_not_ours_to_write(
    listener: Listener, config: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: not (mode & os.W_OK) or path != config)
    await llumctl("migration.max_moves=2", "--save", code=5)
    assert f"{config} cannot be written: it is write-protected" in capsys.readouterr().err
    somebody_else = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: somebody_else)
    await llumctl("migration.max_moves=2", "--save", "--config", str(config), code=5)
    assert "belongs to another user" in capsys.readouterr().err
    assert listener.cluster.controller.keeper.spec.revision == 0


async def test_a_file_that_somebody_changes_meanwhile_is_left_alone(
    listener: Listener, config: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster has the value by then, and the error says so."""
    send = ControlClient.send

    def send_and_change(client: ControlClient, order: Any) -> Any:
        if not order.wanted.dry_run:
            config.write_text("[migration]\nenabled = false\n")
        return send(client, order)

    monkeypatch.setattr(ControlClient, "send", send_and_change)
    await llumctl("migration.max_moves=2", "--save", code=1)
    err = capsys.readouterr().err
    assert f"the running cluster was changed, but {config} was not written" in err
    assert "changed it meanwhile" in err
    assert config.read_text() == "[migration]\nenabled = false\n"
    assert listener.cluster.controller.live.rescheduling.max_moves == 2
