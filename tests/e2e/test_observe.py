"""An emulated cluster, watched by the commands: events, requests, waiting, recording, load."""

import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from controller.api.recording import RecordingReader
from controller.sim.workload.trace_files import read_trace
from tests.certificates import make
from tests.e2e.emulated import NUM_BLOCKS, check_cut, held, one_on_each
from tests.e2e.steering import change, done
from tools.cluster import PATIENCE_S, Cluster, hear_interrupts, marked_processes, wait_for
from tools.pty_process import terminal

NUM_INSTANCES = 4
CONFIG = f"""
[cluster]
engine = "emulated"
instances = {NUM_INSTANCES}

[emulated]
num_blocks = {NUM_BLOCKS}
"""


@pytest.fixture(scope="module")
def systemd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[socket.socket]:
    """The socket on which a service manager hears of `up`; a datagram that is missing fails."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path_factory.mktemp("systemd") / "notify"))
        listener.settimeout(5.0)
        yield listener


@pytest.fixture(scope="module")
def emulated(
    base_env: dict[str, str], systemd: socket.socket, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """Over https: `up` prints such a URL, `bench` believes the certificate, whatever its name."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = make(folder, "chat.example")
    config = folder / "c.toml"
    config.write_text(CONFIG)
    files = ("--ssl-certfile", str(certificate), "--ssl-keyfile", str(key), "--config", str(config))
    up_args = ("--frontends", "2", *files)
    env = base_env | {"NOTIFY_SOCKET": systemd.getsockname()}
    cluster = Cluster(env, name="emu", up_args=up_args, certificate=str(certificate))
    with cluster.running():
        yield cluster


def test_a_service_manager_hears_when_the_cluster_serves(
    emulated: Cluster, systemd: socket.socket
) -> None:
    """By the process that it has started, and by no other: those would speak for the service."""
    told = systemd.recv(4096).decode().splitlines()
    assert told == ["READY=1", f"STATUS=serves embedded at {emulated.url}"]
    others = [each for each in marked_processes(emulated.nonce) if each.pid != os.getpid()]
    assert len(others) > NUM_INSTANCES
    assert not [each for each in others if "NOTIFY_SOCKET" in each.environ()]


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def events(cluster: Cluster, *options: str) -> list[dict[str, Any]]:
    return rows(cluster.run("events", "-o", "jsonl", *options))


def metrics_of(cluster: Cluster) -> str:
    """Of the frontend that answers."""
    return httpx.get(f"{cluster.url}/metrics", verify=cluster.tls, timeout=PATIENCE_S).text


def num_running_by_vllm(cluster: Cluster) -> float:
    lines = [each for each in metrics_of(cluster).splitlines() if "num_requests_running{" in each]
    return sum(float(each.rpartition(" ")[2]) for each in lines)


def test_what_happened_to_a_request_can_be_read(emulated: Cluster) -> None:
    """Its client leaves in the middle: no output tells of it, and vLLM's own gauges are zero."""
    body = {"model": "embedded", "prompt": [400, 401, 402], "max_tokens": 2000, "priority": -1,
            "stream": True, "ignore_eos": True}  # fmt: skip
    url = f"{emulated.url}/v1/completions"
    with httpx.stream("POST", url, json=body, verify=emulated.tls, timeout=PATIENCE_S) as answer:
        lines = answer.iter_lines()  # whose end would be the client's
        first = json.loads(next(lines).removeprefix("data: "))
        (live,) = rows(emulated.run("requests", "-o", "jsonl", "--state", "running"))
        assert live["client_id"].startswith(first["id"])
        assert (live["state"], live["level"], live["num_prompt_tokens"]) == ("running", "high", 3)
        there = emulated.run("requests", "-o", "name", "--instance", live["instance_id"])
        assert there.stdout.split() == [live["id"]]
        wait_for(lambda: num_running_by_vllm(emulated) == 1, "the request to be counted")
    ended = emulated.run("status", f"--wait=request/{live['id']}=aborted", "--timeout", "30")
    assert ended.returncode == 0, ended.stderr
    detail = json.loads(emulated.run("requests", live["id"], "-o", "json").stdout)
    assert [e["kind"] for e in detail["history"]] == ["dispatched", "admitted", "aborted"]
    story = events(emulated, "--request", live["id"])
    assert {e["kind"] for e in story} == {"dispatched", "admitted", "aborted"}
    wait_for(lambda: num_running_by_vllm(emulated) == 0, "the gauges to be zero", 10.0)


def test_a_condition_that_does_not_hold_and_one_that_comes(emulated: Cluster) -> None:
    late = emulated.run("status", "--wait=instance/i-1=stalled", "--timeout", "0.5")
    assert late.returncode == 124
    assert "instance/i-1=stalled" in late.stderr
    assert emulated.run("status", "--wait=instance/i-99=active").returncode == 4
    os.kill(emulated.instance("i-1")["pid"], signal.SIGKILL)
    wait_for(lambda: emulated.instance("i-1")["state"] == "restarting", "its death")
    back = emulated.run("status", "--wait=instance/i-1=active", "--timeout", "60")
    assert back.returncode == 0, back.stderr
    story = [e["kind"] for e in events(emulated, "--instance", "i-1") if "instance" in e["kind"]]
    assert story[-2:] == ["instance_died", "instance_started"]


def test_following_goes_on_over_a_controller_s_death(emulated: Cluster) -> None:
    """So does the dashboard, by itself."""
    following = subprocess.Popen(
        emulated.command("events", "-f", "-n", "1000", "-o", "jsonl"),
        env=emulated.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    )
    seen: list[dict[str, Any]] = []

    def read() -> None:
        assert following.stdout is not None
        seen.extend(json.loads(line) for line in following.stdout)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with terminal("top", "--cluster", emulated.name, env=emulated.env) as screen:
            screen.until("i-3", "live 0.")
            wait_for(
                lambda: any(e["kind"] == "controller_started" for e in seen), "its first events"
            )
            first_epoch = seen[0]["position"].partition("-")[0]
            shown = len(screen.text)
            os.kill(emulated.controller_pid, signal.SIGKILL)
            wait_for(
                lambda: [e for e in seen if not e["position"].startswith(first_epoch)],
                "events of the next controller",
                60,
            )
            emulated.wait_state("ready", 60)
            screen.until("controller", "live 0.", "i-3", after=shown)
            shown = screen.until("[WRITE]")
            screen.until("live 0.", after=shown)
            screen.quit_s()
            assert screen.process.returncode == 0
    finally:
        following.send_signal(signal.SIGINT)
        reader.join(timeout=10)
        _, said = following.communicate(timeout=10)
    assert following.returncode == 130
    assert "gap" not in said
    positions = [event["position"] for event in seen]
    assert len(positions) == len(set(positions))
    kept = [event["position"] for event in events(emulated)]
    assert kept[: len(positions)] == positions, "a controller's successor has kept them"


@contextmanager
def recording(cluster: Cluster, file: Path, *how: str) -> Iterator[None]:
    process = subprocess.Popen(
        cluster.command("record", str(file), *how),
        env=cluster.env,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=hear_interrupts,
    )
    try:
        wait_for(file.exists, "the recording")
        yield
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err
    finally:
        process.kill()
        process.wait()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_load_loses_no_token_and_its_recordings_can_be_read_and_simulated(
    emulated: Cluster, tmp_path: Path
) -> None:
    """Both frontends tell of traffic, and a prompt's beginning has the same hashes at both."""
    report, watched, traffic = (tmp_path / name for name in ("report", "watched", "traffic"))
    body = {"model": "embedded", "prompt": "a b c d e f g h " * 20, "max_tokens": 5}
    load = ("--rate", "8", "--duration", "4", "--lengths", "64,40", "--priority", "high=0.2")
    with recording(emulated, watched), recording(emulated, traffic, "--traffic"):
        for _ in range(16):  # each on a connection of its own, which either frontend may accept
            answer = httpx.post(f"{emulated.url}/v1/completions", json=body, verify=emulated.tls)
            assert answer.status_code == 200, answer.text
        done(emulated, "bench", *load, "--seed", "7", "--json", str(report))
        found = json.loads(report.read_text())
        num_all = 16 + found["num_sent"]
        wait_for(lambda: traffic.read_text().count("\n") > num_all, "all requests")
    assert found["num_right"] == found["num_sent"] == found["num_requests"] > 16
    assert found["num_output_tokens"] == 40 * found["num_sent"]
    wrong = ("num_lost_tokens", "num_doubled_tokens", "num_wrong_tokens", "num_failed")
    assert [found[name] for name in wrong] == [0, 0, 0, 0]
    assert set(found["latencies"]) == {"all", "high", "normal"}
    # Within 5% on a machine that is not busy with other things (docs/benchmarks.md); never early.
    assert found["emulation"]["time_ratio"] > 0.99
    used = {event["instance_id"] for event in events(emulated, "--kind", "dispatched")}
    assert len(used) == NUM_INSTANCES

    with RecordingReader(watched) as reader:
        assert {"status", "event"} <= {frame.type for frame in reader}
    end = json.loads(traffic.read_text().splitlines()[-1])
    counts = {"num_requests": num_all, "num_lost": 0, "num_live": 0, "num_breaks": 0}
    assert end == {"end_s": end["end_s"], **counts}
    num_prompt_tokens = answer.json()["usage"]["prompt_tokens"]
    requests = read_trace(traffic).requests
    ours = [r for r in requests if r.num_output_tokens == 5]
    assert len(ours) == 16
    assert {r.num_prompt_tokens for r in ours} == {num_prompt_tokens}
    assert len({r.prefix_hashes for r in ours}) == 1
    assert len(ours[0].prefix_hashes) == num_prompt_tokens // 16 > 1
    others = [r for r in requests if r not in ours]
    assert {(r.num_prompt_tokens, r.num_output_tokens) for r in others} == {(64, 40)}
    assert 0 < others[-1].arrival_s - others[0].arrival_s < 20
    simulate = ("simulate", "--from", str(traffic), "-n", "2", "-p", "llumnix", "-o", "json")
    printed = subprocess.check_output([emulated.llumctl, *simulate], env=emulated.env)
    assert json.loads(printed)[0]["num_requests"] == num_all


def test_members_run_at_the_priority_of_their_user(emulated: Cluster) -> None:
    """Ray would put its workers behind everything else on the machine."""
    status = emulated.status()
    pids = [member["pid"] for kind in ("instances", "frontends") for member in status[kind]]
    assert {psutil.Process(pid).nice() for pid in pids} == {psutil.Process().nice()}


def control_metrics_of(cluster: Cluster, token: str) -> httpx.Response:
    url = f"http://127.0.0.1:{cluster.control_port}/metrics"
    return httpx.get(url, headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S)


def test_metrics_on_both_listeners(emulated: Cluster) -> None:
    assert control_metrics_of(emulated, "none").status_code == 403
    token = (emulated.state_dir / "view-token").read_text().strip()
    page = control_metrics_of(emulated, token).text
    assert 'llumctl_instance_freeness_steps{instance_id="i-0"}' in page
    # Two frontends share the port and answer as one, whichever is asked.
    pages = [metrics_of(emulated) for _ in range(8)]
    for frontend in pages:
        assert "llumctl_request_ttft_seconds_bucket" in frontend
        assert "vllm:" in frontend
    counted = {line for page in pages for line in page.splitlines() if "ttft_seconds_count" in line}
    assert len(counted) == len({line.rpartition(" ")[0] for line in counted})


# -- the security baseline, on a live cluster ---------------------------------------------


def test_no_secret_in_argv_logs_metrics_or_events(emulated: Cluster) -> None:
    folder = emulated.state_dir
    plan = json.loads((folder / "plan.json").read_text())
    secrets = [plan["control_token"], plan["view_token"], plan["members_key"]]
    secrets.append((folder / "ray.token").read_text().strip())
    assert all(len(secret) >= 32 for secret in secrets)
    processes = marked_processes(emulated.nonce)
    assert len(processes) > NUM_INSTANCES
    shown = [" ".join(process.cmdline()) for process in processes]
    shown += [file.read_text(errors="replace") for file in (folder / "logs").iterdir()]
    shown.append((folder / "audit.log").read_text())
    shown += [metrics_of(emulated), control_metrics_of(emulated, plan["view_token"]).text]
    shown += [emulated.run(*args).stdout for args in (("events", "-o", "json"), ("config", "show"))]
    for secret in secrets:
        for where in shown:
            assert secret not in where


def test_state_is_for_its_owner_only(emulated: Cluster) -> None:
    folders = [emulated.state_dir, *(p for p in emulated.state_dir.rglob("*") if p.is_dir())]
    assert all(stat.S_IMODE(folder.stat().st_mode) == 0o700 for folder in folders)
    files = [p for p in emulated.state_dir.rglob("*") if p.is_file()]
    assert {"plan.json", "run.json", "ray.token", "view-token", "audit.log"} <= {
        file.name for file in files
    }
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)


def test_everything_listens_on_loopback(emulated: Cluster) -> None:
    """Ray's own services too."""
    addresses = [
        connection.laddr
        for process in marked_processes(emulated.nonce)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {emulated.port, emulated.control_port} <= {address.port for address in addresses}
    assert len(addresses) > 2 * NUM_INSTANCES
    assert {address.ip for address in addresses} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_ray_wants_its_token(emulated: Cluster, tmp_path: Path) -> None:
    """A process of the same user that does not have the cluster's token is turned away."""
    plan = json.loads((emulated.state_dir / "plan.json").read_text())
    log = (emulated.state_dir / "logs" / "head.log").read_text()
    address = next(
        line.rpartition(" ")[2] for line in log.splitlines() if "launched on Ray at" in line
    )
    wrong = tmp_path / "ray.token"
    wrong.write_text("f" * 64)
    script = (
        "import ray, sys; ray.init(address=sys.argv[1], namespace=sys.argv[2]);"
        " print(ray.util.list_named_actors())"
    )
    tried = subprocess.run(
        [sys.executable, "-c", script, address, plan["namespace"]],
        env={
            **emulated.env,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(wrong),
            "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on loopback, as the cluster is
            "RAY_gcs_server_port_wait_time_s": "1",  # it would try for twenty
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert tried.returncode != 0
    assert "i-0" not in tried.stdout
    assert "token" in (tried.stderr + tried.stdout).lower()


def new_answers(cluster: Cluster) -> set[int]:
    """Of clients with new connections, all at once: every frontend that can accept has its turn."""

    def ask(url: str) -> int:
        return httpx.get(url, verify=cluster.tls, timeout=PATIENCE_S).status_code

    with ThreadPoolExecutor(32) as pool:
        return set(pool.map(ask, [f"{cluster.url}/v1/models"] * 32))


def test_a_frontend_that_hangs_or_dies_costs_no_new_connection(emulated: Cluster) -> None:
    """The cluster goes on with one frontend while the other starts again."""
    victim = psutil.Process(emulated.status()["frontends"][0]["pid"])
    victim.suspend()
    wait_for(lambda: victim.status() == psutil.STATUS_STOPPED, "the frontend to stand still", 5)
    assert new_answers(emulated) == {200}
    connected = [socket.create_connection(("127.0.0.1", emulated.port)) for _ in range(8)]
    victim.kill()
    assert isinstance(emulated.tls, ssl.SSLContext)
    for each in connected:
        each.settimeout(PATIENCE_S)
        with emulated.tls.wrap_socket(each, server_hostname="127.0.0.1") as secure:
            secure.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert secure.recv(4096).startswith(b"HTTP/1.1 200")
    assert new_answers(emulated) == {200}
    with socket.socket() as stranger:
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with pytest.raises(OSError, match="in use"):
            stranger.bind(("127.0.0.1", emulated.port))


def test_down_at_once_ends_what_runs_and_what_is_held(emulated: Cluster) -> None:
    """The last test of this cluster."""
    with emulated.control() as client:
        change(client, {"scheduler.policy": "llumnix+"})
        found = [*one_on_each(emulated, client), *held(emulated, client, 2)]
    check_cut(emulated, found, "--now")
