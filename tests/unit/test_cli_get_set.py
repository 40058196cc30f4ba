"""`llumctl set` against the real control API."""

import asyncio
import json
import os
import tomllib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.api.settings.setting_values import live_settings
from controller.api.settings.settings import Settings
from controller.api.state import run_state
from controller.api.state.run_state import RunState
from controller.api.text.quantities import setting_value
from controller.main import down
from llumctl.app import run
from llumctl.commands import set_settings
from tests.unit.cli_support import remember
from tests.unit.control_support import TOKEN, Listener, listening

Captured = pytest.CaptureFixture[str]
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "llumctl.toml")


@pytest.fixture
async def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Listener]:
    for variable in ("LLUMCTL_CLUSTER_NAME", "LLUMCTL_CONFIG"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with listening(1) as (served, _):
        remember(served.url, token=TOKEN)
        yield served


async def llumctl(*arguments: str) -> int:
    return await asyncio.to_thread(run, list(arguments))


@pytest.mark.usefixtures("listener")
async def test_settings_are_shown(capsys: Captured) -> None:
    assert await llumctl("set") == 0
    captured = capsys.readouterr()
    header, *rows = captured.out.splitlines()
    assert header.split() == ["KEY", "VALUE", "DEFAULT", "MEANING"]
    assert [row.split()[0] for row in rows] == list(live_settings(Settings()))
    assert "migration.max_moves 4 4 How many moves" in " ".join(" ".join(rows).split())
    assert "endpoint.request_timeout_s none none" in " ".join(" ".join(rows).split())
    assert captured.err == "revision 0\n"
    assert await llumctl("set", "scheduler.hold_timeout_s", "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["revision"] == 0
    assert [(each["key"], each["value"]) for each in found["settings"]] == [
        ("scheduler.hold_timeout_s", 30.0)
    ]
    assert await llumctl("set", "migration.max_moves", "-o", "wide") == 0
    wide = capsys.readouterr().out.splitlines()
    assert wide[0].split() == ["KEY", "VALUE", "DEFAULT", "FROM", "ALLOWED", "MEANING"]
    assert "default  0 to 1024" in wide[1]
    assert await llumctl("set", "-o", "name") == 0
    captured = capsys.readouterr()
    assert "migration.max_moves" in captured.out.split()
    assert captured.err == ""
    assert await llumctl("set", "migration.max_move") == 2
    assert "did you mean migration.max_moves?" in capsys.readouterr().err


async def test_settings_are_changed(listener: Listener, capsys: Captured) -> None:
    changes = ("migration.max_moves=2", "migration.max_bytes_per_s=0.5")
    limits = lambda: listener.cluster.controller.live.rescheduling  # noqa: E731
    assert await llumctl("set", *changes, "--dry-run") == 10
    assert capsys.readouterr().out.splitlines()[0].split() == ["KEY", "PREVIOUS", "WOULD-BE"]
    assert limits().max_moves == 4
    listener.cluster.report("i-0", num_free_blocks=50, num_running=10)
    assert await llumctl("set", "migration.destination_above_steps=100", "--dry-run") == 10
    told = capsys.readouterr().err
    assert told == "sources: none\ndestinations: none; no more: i-0\n"
    assert await llumctl("set", *changes, "-m", "less noise", "--if-revision", "0") == 0
    captured = capsys.readouterr()
    assert [line.split() for line in captured.out.splitlines()] == [
        ["KEY", "PREVIOUS", "NOW"],
        ["migration.max_moves", "4", "2"],
        ["migration.max_bytes_per_s", "0", "0.5"],
    ]
    assert captured.err == "revision 1\n"
    assert limits().max_bytes_per_s == 0.5
    assert '"reason": "less noise"' in listener.audit.path.read_text()
    assert await llumctl("set", *changes) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "nothing to change\n")
    assert await llumctl("set", *changes, "--dry-run") == 0


async def test_words_switches_and_nothing_are_values_too(
    listener: Listener, capsys: Captured
) -> None:
    changes = (
        "scheduler.policy=round-robin",
        "migration.enabled=false",
        "endpoint.request_timeout_s=5",
        "priority.high.target_load_tokens=none",
    )
    assert await llumctl("set", *changes, "-o", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [(each["key"], each["previous"], each["value"]) for each in found["changes"]] == [
        ("endpoint.request_timeout_s", None, 5.0),
        ("scheduler.policy", "llumnix+", "round-robin"),
        ("migration.enabled", True, False),
        ("priority.high.target_load_tokens", 1600, None),
    ]
    config = listener.cluster.controller.live
    assert (config.scheduler.policy, config.rescheduling.enabled) == ("round-robin", False)


async def test_down_takes_the_grace_time_as_it_was_set_last(listener: Listener) -> None:
    state = run_state.load("default")
    assert state is not None
    assert await llumctl("set", "scheduler.grace_s=2.5") == 0
    assert await asyncio.to_thread(down.present_grace_s, state) == 2.5
    gone = replace(state, control_url="http://127.0.0.1:1", grace_s=7.0)
    assert await asyncio.to_thread(down.present_grace_s, gone) == 7.0
    assert listener.cluster.controller.keeper.spec.revision == 1


@pytest.mark.usefixtures("listener")
@pytest.mark.parametrize(("drain", "timeout_s"), [(False, None), (False, 3.0), (True, 3.0)])
async def test_down_asks_for_no_grace_time_that_it_does_not_use(
    monkeypatch: pytest.MonkeyPatch, drain: bool, timeout_s: float | None
) -> None:
    def asked(_state: RunState) -> float:
        raise AssertionError

    told: list[float] = []
    monkeypatch.setattr(down, "present_grace_s", asked)
    monkeypatch.setattr(down, "tear_down", lambda *_, grace_s, **__: told.append(grace_s))
    assert down.run("default", drain=drain, timeout_s=timeout_s, progress=lambda _: None)
    assert told == [timeout_s or 0.0]


@pytest.mark.usefixtures("listener")
async def test_an_older_revision_is_a_conflict(capsys: Captured) -> None:
    assert await llumctl("set", "migration.max_moves=2") == 0
    capsys.readouterr()
    assert await llumctl("set", "migration.max_moves=3", "--if-revision", "0") == 6
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "revision 0 was looked at, and 1 is the present one" in captured.err
    assert captured.err.endswith("try:   llumctl set\n")


@pytest.mark.usefixtures("listener")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("migration.max_moves=-1",), "migration.max_moves must be at least 0, not -1"),
        (("migration.max_moves=few",), "migration.max_moves must be an integer, not"),
        (("migration.max_moves=inf",), "migration.max_moves must be an integer, not"),
        (("migration.max_moves=none",), "migration.max_moves must be an integer, not"),
        (("holding.making_room=never",), "holding.making_room must be true or false, not 'never'"),
        (("autoscale.mode=true",), "autoscale.mode must be 'off', 'dry-run' or 'on', not "),
        (("migration.speed=1",), "there is no setting 'migration.speed'"),
        (("endpoint.port=1",), "endpoint.port cannot be changed while the cluster runs"),
        (("migration.max_moves", "2"), "'migration.max_moves' is not of the form KEY=VALUE"),
        (("migration.max_moves=2", "--if-revision", "-1"), "--if-revision: must be at least 0"),
        (("migration.max_moves=2", "-m", "a\nb"), "--reason: one line of up to 200"),
        (("migration.max_moves=2", "-m", "x" * 201), "--reason: one line of up to 200"),
    ],
)
async def test_what_is_wrong_is_said(
    arguments: tuple[str, ...], words: str, capsys: Captured
) -> None:
    assert await llumctl("set", *arguments) == 2
    assert words in capsys.readouterr().err
    assert await llumctl("set", "migration.max_moves", "-o", "json") == 0
    assert json.loads(capsys.readouterr().out)["settings"][0]["value"] == 4


# -- what was tuned is kept ---------------------------------------------------------------

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
    assert await llumctl("set", *changes, "--dry-run") == 10
    captured = capsys.readouterr()
    assert captured.out.splitlines()[0].split() == ["KEY", "PREVIOUS", "WOULD-BE"]
    lines = [
        "-max_moves = 4   # as it was",
        "+max_moves = 2   # as it was",
        "+max_bytes_per_s = 5.0",
    ]
    assert captured.err.splitlines() == [f"would be saved in {config}:", *lines]
    assert config.read_text() == CONFIG
    assert listener.cluster.controller.live.rescheduling.max_moves == 4
    assert await llumctl("set", *changes) == 0
    assert capsys.readouterr().err.splitlines() == ["revision 1", f"saved in {config}:", *lines]
    assert listener.cluster.controller.live.rescheduling.max_moves == 2
    assert config.read_text() == CONFIG.replace("= 4", "= 2") + "max_bytes_per_s = 5.0\n"
    assert config.stat().st_mode & 0o777 == 0o640
    assert list(config.parent.glob(".ours*")) == []
    assert await llumctl("set", *changes) == 0
    assert capsys.readouterr().err == "nothing to change\n"


async def test_what_was_set_before_is_saved_later(config: Path, capsys: Captured) -> None:
    """The cluster changes no more, its file does."""
    assert await llumctl("set", "migration.max_moves=2") == 0
    assert await llumctl("set", "--toml") == 0
    captured = capsys.readouterr()
    assert captured.out.endswith("[migration]\nmax_moves = 2\n")
    assert captured.err.endswith(f"these differ from {config}\n")
    assert await llumctl("set", "migration.max_moves=2", "--save", "--dry-run") == 10
    assert await llumctl("set", "migration.max_moves=2", "--save") == 0
    assert "max_moves = 2   # as it was" in config.read_text()
    capsys.readouterr()
    assert await llumctl("set", "--toml") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", f"nothing differs from {config}\n")


async def test_priority_levels_come_all_or_none(config: Path, capsys: Captured) -> None:
    assert await llumctl("set", "priority.high.target_load_tokens=800") == 0
    capsys.readouterr()
    assert await llumctl("set", "--toml") == 0
    told = capsys.readouterr().out
    levels = tomllib.loads(told)["priority"]
    assert levels == [
        {"name": "normal", "rank": 0},
        {"name": "high", "rank": 1, "target_load_tokens": 800},
    ]
    assert await llumctl("set", "priority.high.target_load_tokens=800", "--save") == 0
    assert tomllib.loads(config.read_text())["priority"] == levels
    assert await llumctl("set", "priority.high.target_load_tokens=none", "--save") == 0
    assert tomllib.loads(config.read_text())["priority"][1] == {"name": "high", "rank": 1}
    assert config.read_text().startswith(CONFIG)
    capsys.readouterr()
    assert await llumctl("set", "--toml") == 0
    assert capsys.readouterr().out == ""


async def test_what_it_prints_is_a_configuration_file(
    config: Path, tmp_path: Path, capsys: Captured
) -> None:
    changes = ("scheduler.policy=infaas++", "endpoint.request_timeout_s=5", "scheduler.grace_s=1.5")
    assert await llumctl("set", *changes) == 0
    capsys.readouterr()
    assert await llumctl("set", "--toml") == 0
    other = tmp_path / "other.toml"
    other.write_text(capsys.readouterr().out)
    assert await llumctl("set", "--toml", "--config", str(other)) == 0
    assert capsys.readouterr().err == f"nothing differs from {other}\n"
    assert await llumctl("set", "scheduler.policy", "--toml", "--config", str(config)) == 0
    assert capsys.readouterr().out == '[scheduler]\npolicy = "infaas++"\n'


@pytest.mark.usefixtures("listener")
async def test_without_a_file_it_is_compared_with_the_defaults(capsys: Captured) -> None:
    assert await llumctl("set", "migration.max_moves=2") == 0
    capsys.readouterr()
    assert await llumctl("set", "--toml") == 0
    captured = capsys.readouterr()
    assert captured.out == "[migration]\nmax_moves = 2\n"
    assert "the defaults (there is no configuration file)" in captured.err


async def test_a_link_stays_one(config: Path, capsys: Captured) -> None:
    target = config.rename(config.with_name("target.toml"))
    config.symlink_to(target)
    assert await llumctl("set", "migration.max_moves=2", "--save") == 0
    assert config.is_symlink()
    assert "max_moves = 2" in target.read_text()
    assert f"saved in {target}:" in capsys.readouterr().err


async def test_a_variable_that_wins_is_told(
    config: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLUMCTL_MIGRATION_MAX_MOVES", "9")
    assert await llumctl("set", "migration.max_moves=2", "--save") == 0
    assert "LLUMCTL_MIGRATION_MAX_MOVES is set here, and overrides" in capsys.readouterr().err
    assert "max_moves = 2" in config.read_text()


async def test_what_cannot_be_saved_is_not_set(
    listener: Listener, config: Path, tmp_path: Path, capsys: Captured
) -> None:
    save = ("set", "migration.max_moves=2", "--save")
    absent = tmp_path / "absent" / "c.toml"
    assert await llumctl(*save, "--config", str(absent)) == 2
    assert f"{absent}: there is no such config file" in capsys.readouterr().err
    config.write_text("\nmigration = { enabled = true }\n")
    assert await llumctl(*save) == 5
    assert f"{config}:2: migration stands in braces: write max_moves = 2" in capsys.readouterr().err
    config.write_text("[[priority]]\nname = 'one'\nrank = 0\n")
    assert await llumctl("set", "priority.high.target_load_tokens=1", "--save") == 5
    assert "it has no priority level 'high'" in capsys.readouterr().err
    config.write_text("[migration\n")
    assert await llumctl(*save) == 2
    assert f"{config}:1: not valid TOML" in capsys.readouterr().err
    config.unlink()
    assert await llumctl(*save) == 2
    assert "there is no such config file (the cluster was started with it)" in (
        capsys.readouterr().err
    )
    assert await llumctl("set", "migration.max_moves=few", "--save") == 2
    assert listener.cluster.controller.keeper.spec.revision == 0


@pytest.mark.usefixtures("listener")
async def test_without_a_file_nothing_is_saved(tmp_path: Path, capsys: Captured) -> None:
    assert await llumctl("set", "migration.max_moves=2", "--save") == 2
    file = tmp_path / "config" / "llumctl" / "config.toml"
    err = capsys.readouterr().err
    assert f"{file}: there is no configuration file to save in" in err
    assert err.endswith(f"try:   mkdir -p {file.parent} && touch {file}\n")


async def test_a_file_that_is_not_ours_to_write(
    listener: Listener, config: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: not (mode & os.W_OK) or path != config)
    assert await llumctl("set", "migration.max_moves=2", "--save") == 5
    assert f"{config} cannot be written: it is write-protected" in capsys.readouterr().err
    monkeypatch.setattr("os.access", lambda *_: True)
    somebody_else = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: somebody_else)
    assert await llumctl("set", "migration.max_moves=2", "--save", "--config", str(config)) == 5
    assert "belongs to another user" in capsys.readouterr().err
    assert listener.cluster.controller.keeper.spec.revision == 0


async def test_a_file_that_somebody_changes_meanwhile_is_left_alone(
    listener: Listener, config: Path, capsys: Captured
) -> None:
    """The cluster has the value by then, and the error says so."""
    changed = listener.server._live_settings.make

    def make(planned: Any) -> Any:
        config.write_text("[migration]\nenabled = false\n")
        return changed(planned)

    listener.server._live_settings.make = make  # type: ignore[method-assign]
    assert await llumctl("set", "migration.max_moves=2", "--save") == 1
    err = capsys.readouterr().err
    assert f"the running cluster was changed, but {config} was not written" in err
    assert "changed it meanwhile" in err
    assert config.read_text() == "[migration]\nenabled = false\n"
    assert listener.cluster.controller.live.rescheduling.max_moves == 2


@pytest.mark.usefixtures("listener")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("set", "--toml", "-o", "json"), "--toml: not with --output"),
        (("set", "--config", EXAMPLE), "--config: only with --toml or --save"),
        (("set", "a.b=1", "--config", EXAMPLE), "--config: only with --toml or --save"),
        (("set", "a.b=1", "--toml"), "--toml: not with KEY=VALUE"),
        (("set", "--save"), "--save: only with KEY=VALUE"),
        (("set", "a.b", "--dry-run"), "--dry-run: only with KEY=VALUE"),
        (("set", "a.b", "2"), "'a.b'"),
    ],
)
async def test_options_that_do_not_go_together(
    arguments: tuple[str, ...], words: str, capsys: Captured
) -> None:
    assert await llumctl(*arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"),
    [(4, "4"), (0.0, "0"), (2.5, "2.5"), (5e9, "5000000000"), (True, "true"), (None, "none")],
)
def test_a_value_is_shown_as_it_can_be_typed(value: float | None, text: str) -> None:
    assert setting_value(value) == text
    assert set_settings.parse([f"a.b={text}"]) == {"a.b": value}
