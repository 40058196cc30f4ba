"""`llumctl up` and `down` over stand-ins for the controller's side."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.api.settings.settings import EndpointTable, Settings
from controller.api.wire.status import ClusterState, InstanceState
from llumctl.app import run
from llumctl.commands import up
from tests.unit.cli_support import Cli, cluster
from tools import synthetic_cluster as synthetic
from tools.synthetic_cluster import instance

Captured = pytest.CaptureFixture[str]

STARTING = cluster(
    instance("i-0", InstanceState.STARTING, detail="importing vLLM"), state=ClusterState.STARTING
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `up` and `down` were called with; `script` is the news they report."""
    seen: dict[str, Any] = {"script": [], "result": None}

    def start(settings: Settings, *, progress: Callable[[Any], None], **options: Any) -> Any:
        seen["up"] = (settings, options)
        for news in seen["script"]:
            progress(news)
        if isinstance(seen["result"], Exception):
            raise seen["result"]
        return seen["result"]

    def stop(name: str, *, progress: Callable[[str], None], **options: Any) -> Any:
        seen["down"] = (name, options)
        progress("stopping")
        return seen["result"]

    monkeypatch.setattr("controller.main.up.run", start)
    monkeypatch.setattr("controller.main.down.run", stop)
    return seen


def test_up_passes_settings_and_options(
    calls: dict[str, Any], capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's name in full, as other commands run elsewhere."""
    file = tmp_path / "c.toml"
    file.write_text("[cluster]\ninstances = 2\n")
    monkeypatch.chdir(tmp_path)
    line = "up Qwen/Q -n 3 --frontends 2 --cluster c --port 9000 --control-port 9001 --host ::1"
    more = "--ray-address h:1 --engine-arg max-model-len=64 -d --wait --timeout 5 --config c.toml"
    sets = "--set holding.making_room=off --set migration.max_moves=2"
    assert run([*line.split(), *more.split(), *sets.split()]) == 0
    settings, options = calls["up"]
    assert options == {"detach": True, "wait": True, "timeout_s": 5.0, "config_file": str(file)}
    known = {"name": "c", "model": "Qwen/Q", "instances": 3, "frontends": 2, "ray_address": "h:1"}
    assert settings.cluster.model_dump().items() >= known.items()
    assert (settings.endpoint.host, settings.endpoint.port) == ("::1", 9000)
    assert settings.control.port == 9001
    assert settings.engine == {"max_model_len": 64}
    assert (settings.holding.making_room, settings.migration.max_moves) == (False, 2)
    assert capsys.readouterr().out == ""
    assert run(["up", "--engine", "emulated", "--profile", "h100-llama-8b"]) == 0
    settings, options = calls["up"]
    assert (settings.cluster.engine, settings.emulated.profile) == ("emulated", "h100-llama-8b")
    assert options == {"detach": False, "wait": False, "timeout_s": None, "config_file": ""}


def test_up_tells_each_change_once_then_the_endpoint(calls: dict[str, Any], cli: Cli) -> None:
    failed = cluster(instance("i-0", InstanceState.STALLED))
    leaving = instance("i-0", InstanceState.RESTARTING, detail="its process is gone")
    stopping = [cluster(each, state=ClusterState.STOPPING) for each in (instance(), leaving)]
    calls["script"] = ["starting Ray", STARTING, STARTING, cluster(), cluster(), failed, *stopping]
    captured = cli("up")
    assert captured.err.splitlines() == [
        "starting Ray",
        "i-0: starting (importing vLLM)",
        "f-0: active",
        "i-0: active",
        "i-0: stalled",
        "the cluster is being stopped",
    ]
    url, curl = captured.out.splitlines()
    assert url == "http://127.0.0.1:8000/v1"
    assert curl.startswith("curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type")


def test_detached_up_prints_the_endpoint_of_what_it_got(calls: dict[str, Any], cli: Cli) -> None:
    calls["result"] = STARTING
    captured = cli("up", "-d")
    assert captured.out.startswith("http://127.0.0.1:8000/v1\n")
    assert "still starting" in captured.err


def test_a_degraded_start_still_tells_the_endpoint() -> None:
    half = (instance("i-0"), instance("i-1", InstanceState.FAILED))
    assert up.is_up(cluster(*half, state=ClusterState.DEGRADED))
    assert not up.is_up(cluster(half[1], state=ClusterState.DEGRADED))
    assert not up.is_up(cluster(*half, state=ClusterState.STARTING))


def test_of_several_models_the_curl_line_asks_the_first_one() -> None:
    text = up.endpoint_text(Settings(), synthetic.two_models())
    assert '"model": "big"' in text


@pytest.mark.process
def test_the_curl_line_survives_a_shell(tmp_path: Path) -> None:
    keys = tmp_path / "the keys"
    keys.write_text("\nk1 normal,high\nk2\n")
    settings = Settings(endpoint=EndpointTable(served_model_name="it's", api_key_file=str(keys)))
    _, curl = up.endpoint_text(settings, cluster()).splitlines()
    show = 'curl() { for a in "$@"; do case $a in @*) cat "${a#@}";; *) echo "$a";; esac; done; }; '
    done = subprocess.run(["bash", "-c", show + curl], capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    assert words[2] == "Authorization: Bearer k1"
    assert json.loads(words[-1])["model"] == "it's"


def test_on_a_terminal_it_redraws(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with up.Progress(Settings()) as shown:
        shown(STARTING)
        shown("a [note]")
        shown(cluster())
        shown(cluster(instance("i-0", InstanceState.STALLED)))
    captured = capsys.readouterr()
    assert "importing vLLM" in captured.err
    assert "a [note]" in captured.err
    assert captured.err.endswith("i-0: stalled\n")
    assert captured.out.startswith("http://")


def test_down(calls: dict[str, Any], capsys: Captured) -> None:
    assert run(["down", "--confirm", "prod"]) == 5
    assert "down" not in calls
    assert "nothing was stopped" in capsys.readouterr().err
    calls["result"] = True
    assert run(["down", "--cluster", "c", "--confirm", "c", "--now", "--timeout", "3"]) == 0
    assert calls["down"] == ("c", {"drain": False, "timeout_s": 3.0})
    assert capsys.readouterr() == ("", "stopping\n")
    calls["result"] = False
    assert run(["down"]) == 0
    assert calls["down"] == ("default", {"drain": True, "timeout_s": None})
    assert "nothing to stop: cluster default is not running" in capsys.readouterr().err
