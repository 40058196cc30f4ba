"""Which cluster a command means: by name, by URL, the only one, or that which is chosen."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from controller.api.errors import LlumctlError, NotRunningError, RefusedError, UsageError
from controller.api.recording import RecordingReader
from llumctl import choosing, connect
from llumctl.app import run
from llumctl.commands import watching
from tests.unit import fake_controller
from tests.unit.cli_support import TOKEN, cluster, remember
from tests.unit.fake_controller import FakeController
from tests.unit.tui.pty_process import terminal

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
    assert connect.option("default") == ""
    remember("http://127.0.0.1:1", name="prod")
    assert connect.option("prod") == " --cluster prod"  # the only one may get company
    assert connect.option("http://[::1]:8700") == " --cluster 'http://[::1]:8700'"
    monkeypatch.setenv("LLUMCTL_CLUSTER_NAME", "prod")
    assert connect.option("prod") == ""
    assert connect.option("default") == " --cluster default"
    monkeypatch.setenv("LLUMCTL_CLUSTER_NAME", "No Name")
    assert connect.option("default") == " --cluster default"


def test_down_finds_no_other_cluster_than_was_meant(capsys: Captured) -> None:
    remember("http://127.0.0.1:1", name="prod")
    assert run(["logs"]) == 4
    assert "cluster default has left no logs" in capsys.readouterr().err
    assert run(["down", "--cluster", "http://127.0.0.1:1"]) == 2


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("http://127.0.0.1:8700", "http://127.0.0.1:8700"),
        ("http://127.9.9.9:8700", "http://127.9.9.9:8700"),
        ("http://LOCALHOST:8700", "http://LOCALHOST:8700"),
        ("http://localhost:8700/", "http://localhost:8700"),
        ("http://[::1]:8700", "http://[::1]:8700"),
        ("https://head.example:8700", "https://head.example:8700"),
    ],
)
def test_urls_that_a_token_may_go_to(url: str, found: str) -> None:
    assert connect.attached(url) == found


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://head.example:8700", "the token would go to head.example unencrypted"),
        ("http://10.0.0.7:8700", "the token would go to 10.0.0.7 unencrypted"),
        ("http://127.0.0.1.evil.example", "unencrypted"),
        # A resolver that does not know these names asks the network who they are.
        ("http://prod.localhost:8700", "the token would go to prod.localhost unencrypted"),
        ("http://localhost.:8700", "unencrypted"),
        ("http://127.1:8700", "unencrypted"),
        ("http://[::2]:8700", "unencrypted"),
        ("http://127.0.0.1:8700/v1", "the URL ends with the port"),
        ("http://127.0.0.1:8700/?token=secret", "the URL ends with the port"),
        ("http://user:secret@127.0.0.1:8700", "looks like http://127.0.0.1:8700"),
        ("ftp://127.0.0.1:8700", "looks like"),
        ("http://", "looks like"),
        ("http://[::1", "looks like"),
        ("http://127.0.0.1:99999", "looks like"),
    ],
)
def test_urls_that_it_may_not(url: str, message: str) -> None:
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
        monkeypatch.setattr("controller.api.recorded_requests.EVERY_S", 0.01)
        remember("http://127.0.0.1:1", name="default")  # of the same name, but another one
        with watching.writer(tmp_path / "w.jsonl", fake.url, "default", 1.0):
            fake.until_asked("/v1/requests")
        file = tmp_path / "r.jsonl"
        assert run(["record", str(file), "--duration", "0.3s", *arguments]) == 0
        with RecordingReader(file) as reader:
            assert reader.header.cluster == "default"
        monkeypatch.delenv(connect.TOKEN_FILE)
        monkeypatch.setenv(connect.TOKEN, TOKEN)
        assert run(["events", *arguments]) == 0
        monkeypatch.setenv(connect.TOKEN, "another")
        capsys.readouterr()
        assert run(["status", *arguments]) == 5
        assert "bad token" in capsys.readouterr().err
    assert run(["status", *arguments]) == 3
    assert "try:   ssh -fNL" in capsys.readouterr().err  # and not to stop a cluster that is here


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [
        ("right", 0o644, "open to other users"),
        ("", 0o600, "holds no key"),
        ("two words", 0o600, "this is no token"),
        ("two\nlines", 0o600, "this is no token"),
        ('{"schema_version": 1}', 0o600, "is no run.json: cluster is missing"),
        ("{", 0o600, "is no run.json"),
        ("[" * 9, 0o600, ""),
    ],
)
def test_files_that_hold_no_token(
    text: str, mode: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    path.chmod(mode)
    monkeypatch.setenv(connect.TOKEN_FILE, str(path))
    with pytest.raises(LlumctlError) as caught, connect.client("http://127.0.0.1:1") as client:
        client.status()
    assert message in caught.value.message
    assert "words" not in caught.value.message


@pytest.mark.parametrize(
    ("answer", "name"),
    [("\n", "default"), ("1\n", "default"), (" 2 \n", "prod"), ("prod\n", "prod")],
)
def test_an_answer_by_number_or_name(answer: str, name: str) -> None:
    assert choosing.chosen(answer, ["default", "prod"]) == name


@pytest.mark.parametrize("answer", ["", "0\n", "3\n", "q\n", "²\n", "prod-a\n", "default prod\n"])
def test_an_answer_that_names_none(answer: str) -> None:
    with pytest.raises(RefusedError, match="is none of default, prod"):
        choosing.chosen(answer, ["default", "prod"])


@pytest.mark.process
def test_the_dashboard_asks_which_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_controller, "TOKEN", TOKEN)
    status = cluster().model_copy(update={"cluster": "prod", "model": "llama"})
    with FakeController(status=status) as fake:
        remember("http://127.0.0.1:1", name="test")
        remember(fake.url, name="prod")
        with terminal("top") as screen:
            screen.until("several clusters are here:", "which one? [1 is prod]")
            assert "1  prod  ready  1 instances of llama" in screen.text
            assert "2  test  its controller does not answer" in screen.text
            screen.press("\r")
            screen.until("live 0.")
            screen.quit_s()
            assert screen.process.returncode == 0
