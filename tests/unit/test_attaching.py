"""Which cluster a command means: by name, by URL, the only one, or that which is chosen."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from controller.api.errors import LlumctlError, NotRunningError, RefusedError, UsageError
from controller.api.operations.on_instances import DrainReport
from controller.api.recording import RecordingReader
from controller.api.wire import ErrorBody
from llumctl import connect, meant
from llumctl.app import run
from llumctl.commands import record, top
from tests.unit import fake_controller
from tests.unit.cli_support import TOKEN, cluster, remember, stop
from tests.unit.fake_controller import FakeController
from tools.pty_process import terminal

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (connect.TOKEN, connect.TOKEN_FILE):
        monkeypatch.delenv(variable, raising=False)


def private(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def test_default_or_the_only_one_or_a_refusal_that_names_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert connect.attached(None) == "default"
    remember("http://127.0.0.1:1", name="prod")
    assert connect.attached(None) == "prod"
    assert connect.attached("other") == "other"
    remember("http://127.0.0.1:1", name="test")
    with pytest.raises(NotRunningError) as caught:
        connect.attached(None)
    assert "none was named: prod, test" in caught.value.message
    assert caught.value.hint.startswith("llumctl status --cluster prod      or      ")
    monkeypatch.setenv("LLUMCTL_CLUSTER_NAME", "test")
    assert connect.attached(None) == "test"
    monkeypatch.delenv("LLUMCTL_CLUSTER_NAME")
    remember("http://127.0.0.1:1")
    assert connect.attached(None) == "default"


def test_a_command_names_its_cluster_unless_it_would_be_taken_anyway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert meant.option("default") == ""
    remember("http://127.0.0.1:1", name="prod")
    assert meant.option("prod") == " --cluster prod"  # the only one may get company
    assert meant.option("http://[::1]:8700") == " --cluster 'http://[::1]:8700'"
    monkeypatch.setenv("LLUMCTL_CLUSTER_NAME", "prod")
    assert meant.option("prod") == ""
    assert meant.option("default") == " --cluster default"
    monkeypatch.setenv("LLUMCTL_CLUSTER_NAME", "No Name")
    assert meant.option("default") == " --cluster default"


def test_down_finds_no_other_cluster_than_was_meant(capsys: Captured) -> None:
    remember("http://127.0.0.1:1", name="prod")
    assert run(["logs"]) == 4
    assert "cluster default has left no logs" in capsys.readouterr().err
    assert run(["down", "--cluster", "http://127.0.0.1:1"]) == 2


@pytest.mark.parametrize(
    "url", ["http://127.9.9.9:87", "http://LOCALHOST:87/", "http://[::1]:87", "https://head.x:87"]
)
def test_urls_that_a_token_may_go_to(url: str) -> None:
    assert connect.attached(url) == url.removesuffix("/")


def test_urls_that_it_may_not() -> None:
    for url, message in (
        ("http://head.example:8700", "the token would go to head.example unencrypted"),
        ("http://127.0.0.1.evil.example", "unencrypted"),
        # A resolver that does not know these names asks the network who they are.
        ("http://prod.localhost:8700", "the token would go to prod.localhost unencrypted"),
        ("http://127.1:8700", "unencrypted"),
        ("http://[::2]:8700", "unencrypted"),
        ("http://127.0.0.1:8700/?token=secret", "the URL ends with the port"),
        ("http://user:secret@127.0.0.1:8700", "looks like http://127.0.0.1:8700"),
        ("http://[::1", "looks like"),
        ("http://127.0.0.1:99999", "looks like"),
    ):
        with pytest.raises(UsageError) as caught:
            connect.attached(url)
        assert message in caught.value.message
        assert "secret" not in caught.value.message + caught.value.hint


def test_a_remote_cluster_by_the_token_of_a_file_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    """Every command that asks the control API works so; what needs files says that it does."""
    state = remember("http://127.0.0.1:1", name="elsewhere")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "here"))
    with FakeController(status=cluster()) as fake:
        arguments = ["--cluster", fake.url]
        assert run(["status", *arguments]) == 2
        assert "needs a token: set LLUMCTL_TOKEN_FILE" in capsys.readouterr().err
        for text in (TOKEN, f"{TOKEN}\n", json.dumps(asdict(state))):
            monkeypatch.setenv(connect.TOKEN_FILE, private(tmp_path / "token", text))
            assert run(["status", *arguments]) == 0
            assert "cluster default  ready" in capsys.readouterr().out
        with pytest.raises(RefusedError, match="only its URL is known"):
            connect.running(fake.url)  # for get --toml, set --save, bench
        monkeypatch.setattr("controller.api.recording.REQUESTS_EVERY_S", 0.01)
        remember("http://127.0.0.1:1")  # it has the same name, and is another cluster
        with record.new_recording(tmp_path / "w.jsonl", fake.url, "default", 1.0):
            fake.until_asked("/v1/requests")
        file = tmp_path / "r.jsonl"
        assert run(["record", str(file), "--duration", "0.3s", *arguments]) == 0
        with RecordingReader(file) as reader:
            assert reader.header.cluster == "default"
        monkeypatch.delenv(connect.TOKEN_FILE)
        monkeypatch.setenv(connect.TOKEN, TOKEN)
        assert run(["events", *arguments]) == 0
        monkeypatch.setenv(connect.TOKEN, "another")
        assert run(["status", *arguments]) == 5
        assert "bad token" in capsys.readouterr().err
    assert run(["status", *arguments]) == 3
    assert "try:   ssh -fNL" in capsys.readouterr().err  # and not to stop a cluster that is here


def test_files_that_hold_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "token"
    monkeypatch.setenv(connect.TOKEN_FILE, str(path))
    for text, mode, message in (
        ("right", 0o644, "open to other users"),
        ("two words", 0o600, "this is not a token"),
        ('{"schema_version": 1}', 0o600, "is not a run.json: cluster is missing"),
        ("[" * 9, 0o600, ""),
    ):
        path.write_text(text)
        path.chmod(mode)
        with pytest.raises(LlumctlError) as caught, connect.client("http://127.0.0.1:1") as client:
            client.status()
        assert message in caught.value.message
        assert "words" not in caught.value.message


def test_an_answer_by_number_or_name() -> None:
    for answer, name in (
        ("\n", "default"),
        ("1\n", "default"),
        (" 2 \n", "prod"),
        ("prod\n", "prod"),
    ):
        assert top.chosen(answer, ["default", "prod"]) == name
    for answer in ("", "0\n", "3\n", "²\n", "default prod\n"):
        with pytest.raises(RefusedError, match="is none of default, prod"):
            top.chosen(answer, ["default", "prod"])


@pytest.mark.process
def test_the_dashboard_asks_which_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_controller, "TOKEN", TOKEN)
    status = cluster().model_copy(update={"cluster": "prod", "model": "llama"})
    with FakeController(status=status) as fake:
        remember("http://127.0.0.1:1", name="test")
        remember(fake.url, name="prod")
        with terminal("top") as screen:
            screen.until("several clusters are running:", "which cluster? [1: prod]")
            assert "2  test  its controller does not answer" in screen.text
            screen.press("\r")
            screen.until("live 0.")
            screen.quit_s()


# What errors say to try means the cluster of the command (`llumctl.meant`)


PLANNED = DrainReport(instance_id="i-0", state="active", dry_run=True)


def tried(arguments: str, capsys: Captured) -> str:
    assert run(arguments.split()) > 0
    told = capsys.readouterr().err
    return told[told.index("try: ") :].removeprefix("try:").strip()


def test_what_to_try_names_the_cluster_that_was_named(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a cluster `default`, which the bare commands would drain, stop or start."""
    refusal = ErrorBody(code="last", message="none is left", hint="llumctl scale +1 or else")
    with FakeController(status=cluster()) as fake:
        remember("http://127.0.0.1:1")
        remember(fake.url, name="h2")
        fake.orders["POST /v1/instances/i-9/drain"] = lambda _: (409, refusal)
        fake.orders["POST /v1/instances/i-0/drain"] = lambda _: (200, PLANNED)
        dry_run, _, real = tried("drain i-0 --cluster h2", capsys).partition("      then      ")
        assert dry_run == "llumctl drain --cluster h2 i-0 --dry-run"
        assert real == "llumctl drain --cluster h2 i-0 -y"
        assert tried("drain i-9 -y --cluster h2", capsys) == "llumctl scale --cluster h2 +1 or else"
        monkeypatch.setenv("LLUMCTL_CLUSTER_NAME", "h2")  # of the shell into which it is pasted
        assert tried("drain i-9 -y", capsys) == "llumctl scale +1 or else"
        assert tried("status --cluster default", capsys) == (
            "llumctl down --cluster default      then      llumctl up --cluster default"
        )


def test_what_to_try_names_the_cluster_that_was_found(tmp_path: Path, capsys: Captured) -> None:
    remember("http://127.0.0.1:1", name="h2")
    assert tried("status", capsys).startswith("llumctl down --cluster h2      then")
    assert tried("drain -y", capsys) == "llumctl drain --help"  # it forgets the one before
    remember("http://127.0.0.1:1")
    stop("a", name="h2")
    assert tried("status --cluster h2", capsys).startswith("llumctl up --cluster h2      or")
    file = tmp_path / "p.toml"
    file.write_text('[cluster]\nname = "prod"\nengine = "emulated"\n')
    found = tried(f"up no-such-model --config {file} --engine-arg x=1", capsys)
    assert found.startswith(f"llumctl up --config {file} --engine emulated")


def test_what_to_try_of_a_cluster_behind_a_url(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What needs the cluster's files is for a shell over there: here it would stop another one."""
    monkeypatch.setenv(connect.TOKEN, TOKEN)
    stopping = ErrorBody(code="stopping", message="it stops", hint="llumctl up")
    with FakeController(status=cluster()) as fake:
        fake.orders["POST /v1/instances/i-9/drain"] = lambda _: (409, stopping)
        of = f"--cluster {fake.url}"
        assert tried(f"drain i-9 -y {of}", capsys) == "ssh HOST llumctl up --cluster NAME"
        fake.orders["POST /v1/instances/i-0/drain"] = lambda _: (200, PLANNED)
        assert f"llumctl drain {of} i-0 -y" in tried(f"drain i-0 {of}", capsys)
    assert "secret" not in tried("drain ??? --cluster http://u:secret@127.0.0.1:1", capsys)
