"""The examples for Kubernetes, containers and systemd: what Kubernetes and llumctl would refuse,
and times that have to be in order. kubectl renders the manifests; without it the base is read as
it is."""

import configparser
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from controller.api.settings.settings import Settings
from llumctl.config import settings
from tests.unit.cli_support import Cli

pytestmark = pytest.mark.process

EXAMPLES = Path(__file__).parents[2] / "examples"
BASE = EXAMPLES / "kubernetes" / "base"
Manifest = dict[str, Any]

# The fields of KubeRay's RayCluster (ray.io/v1) that the example uses, by the type of each:
# Kubernetes drops a field that the definition does not have, and says nothing. Seen in KubeRay of
# August 2026.
RAY_CLUSTER = {"rayVersion": str, "enableInTreeAutoscaling": bool, "authOptions": dict}
HEAD_GROUP = {"rayStartParams": dict, "template": dict}
WORKER_GROUP = HEAD_GROUP | {
    **{"groupName": str, "replicas": int, "minReplicas": int, "maxReplicas": int},
}


def rendered(folder: str) -> list[Manifest]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed, which renders the overlay")
    command = [kubectl, "kustomize", str(EXAMPLES / "kubernetes" / folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_base() -> list[Manifest]:
    """As the files are, without the ConfigMap that kustomize makes of the others."""
    names = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    return [each for name in names for each in yaml.safe_load_all((BASE / name).read_text())]


def one(manifests: list[Manifest], kind: str) -> Manifest:
    (found,) = (each for each in manifests if each["kind"] == kind)
    return found


def pods(ray_cluster: Manifest) -> dict[str, Manifest]:
    """The pods of the head and of the workers."""
    spec = ray_cluster["spec"]
    (workers,) = spec["workerGroupSpecs"]
    return {"head": spec["headGroupSpec"]["template"], "worker": workers["template"]}


HEAD_AND_WORKER = pods(one(of_base(), "RayCluster"))


def container(kind: str) -> dict[str, Any]:
    (found,) = HEAD_AND_WORKER[kind]["spec"]["containers"]
    return dict(found)


def config_of(name: str, folder: Path, environ: dict[str, str]) -> Settings:
    """The settings by the example's file, with secrets in the test's folder."""
    text = (BASE / name).read_text().replace("/home/llumctl/secrets", str(folder))
    for secret in ("api-keys", "tls.crt", "tls.key"):
        (folder / secret).write_text("sk-of-a-test-with-some-length\n")
        (folder / secret).chmod(0o600)
    (folder / name).write_text(text)
    (folder / name).chmod(0o600)
    return settings.load(config=folder / name, environ=environ)


# -- Kubernetes --------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["as it is", "base", "try"])
def test_kubernetes_takes_each_manifest(folder: str) -> None:
    """By the schemas of its API; pods of the RayCluster as pods of their own. Fields that it does
    not know are errors."""
    manifests = of_base() if folder == "as it is" else rendered(folder)
    ray_cluster = one(manifests, "RayCluster")
    for kind, template in pods(ray_cluster).items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": kind}, **template}
        kubernetes_validate.validate(pod, "1.37", strict=True)
    own = [each for each in manifests if each["kind"] not in ("RayCluster", "PodMonitor")]
    assert len(own) >= 10
    for each in own:
        kubernetes_validate.validate(each, "1.37", strict=True)


def check_fields(given: Manifest, known: dict[str, type]) -> None:
    for name, value in given.items():
        assert isinstance(value, known[name]), name


def test_kuberay_knows_each_field() -> None:
    ray_cluster = one(of_base(), "RayCluster")
    assert ray_cluster["apiVersion"] == "ray.io/v1"
    assert ray_cluster["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    spec = ray_cluster["spec"]
    groups = {"headGroupSpec": dict, "workerGroupSpecs": list}
    check_fields(spec, RAY_CLUSTER | groups)
    check_fields(spec["headGroupSpec"], HEAD_GROUP)
    (workers,) = spec["workerGroupSpecs"]
    check_fields(workers, WORKER_GROUP)
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    for group in (spec["headGroupSpec"], workers):  # strings, as on a command line
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


def test_names_and_ports_agree(tmp_path: Path) -> None:
    manifests = of_base()
    found = config_of("llumctl.toml", tmp_path, {})
    ports = {each["name"]: each["containerPort"] for each in container("head")["ports"]}
    assert ports["endpoint"] == found.endpoint.port
    (service_port,) = one(manifests, "Service")["spec"]["ports"]
    (scraped,) = one(manifests, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert service_port["targetPort"] == scraped["port"] == "endpoint"
    policies = [each for each in manifests if each["kind"] == "NetworkPolicy"]
    opened = [
        port["port"]
        for policy in policies
        for rule in policy["spec"]["ingress"]
        for port in rule.get("ports", ())
    ]
    assert opened == [found.endpoint.port]
    workers = one(manifests, "RayCluster")["spec"]["workerGroupSpecs"][0]["replicas"]
    assert found.cluster.instances == workers + 1, "one for each GPU, that of the head too"
    for kind in HEAD_AND_WORKER:
        names = {each["name"] for each in HEAD_AND_WORKER[kind]["spec"]["volumes"]}
        assert names == {each["name"] for each in container(kind)["volumeMounts"]}


def test_an_instance_has_the_time_to_leave(tmp_path: Path) -> None:
    """An instance is gone before the hook gives up waiting, and the hook has ended before
    Kubernetes kills the container, with time for what comes after it."""
    found = config_of("llumctl.toml", tmp_path, {})
    bash, script, within = container("worker")["lifecycle"]["preStop"]["exec"]["command"]
    assert (bash, script) == ("bash", "/etc/llumctl/evacuate.sh")
    grace_s = HEAD_AND_WORKER["worker"]["spec"]["terminationGracePeriodSeconds"]
    environ = {each["name"]: each.get("value") for each in container("worker")["env"]}
    drain_s = int(environ["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"])
    assert found.evacuate.notice_s + 5 <= int(within) <= grace_s - drain_s - 5
    assert f"within_s=${{1:-{within}}}" in (BASE / "evacuate.sh").read_text()
    head = HEAD_AND_WORKER["head"]["spec"]["terminationGracePeriodSeconds"]
    _, waits_s = container("head")["lifecycle"]["preStop"]["exec"]["command"]
    assert int(waits_s) + found.scheduler.grace_s + 30 <= head


def test_a_drain_fails_the_probe_of_requests_alone(tmp_path: Path) -> None:
    """A liveness probe that failed in a drain would end the requests that the drain moves."""
    head = container("head")
    assert head["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert head["livenessProbe"]["httpGet"]["path"] == "/health"
    startup = head["startupProbe"]
    found = config_of("llumctl.toml", tmp_path, {})
    patience_s = startup["periodSeconds"] * startup["failureThreshold"]
    assert patience_s >= found.cluster.start_timeout_s
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert head[probe]["httpGet"]["scheme"] == "HTTPS"


def test_settings_of_the_overlay_are_settings(tmp_path: Path) -> None:
    head = pods(one(rendered("try"), "RayCluster"))["head"]["spec"]["containers"][0]
    environ = {each["name"]: each.get("value", "") for each in head["env"]}
    ours = {name: value for name, value in environ.items() if name.startswith("LLUMCTL_")}
    found = config_of("llumctl.toml", tmp_path, ours)
    assert (found.cluster.engine, found.cluster.model) == ("emulated", "embedded")


def test_scripts_run_commands_that_there_are(cli: Cli) -> None:
    """Each `llumctl` of the scripts has options of the command line; the shell can read both."""
    for script in ("head.sh", "evacuate.sh"):
        subprocess.run(["bash", "-n", str(BASE / script)], check=True, timeout=30)
    calls = re.findall(r"^(?:exec )?llumctl (\w+)(.*)$", (BASE / "head.sh").read_text(), re.M)
    assert [command for command, _ in calls] == ["down", "up"]
    for command, rest in calls:
        shown = cli.out(command, "--help")
        for option in re.findall(r"--[\w-]+", rest):
            assert re.search(rf"{option}\b", shown.replace("--drain/--now", "--now")), option


def test_the_hook_waits_for_the_processes_that_it_has_told(tmp_path: Path) -> None:
    """With stand-ins that have the title of llumctl's processes: one ends at SIGTERM, one never."""
    title = "ray::HookTest"
    script = tmp_path / "evacuate.sh"
    script.write_text(
        (BASE / "evacuate.sh").read_text().replace("^ray::(.*:)?RayMember", f"^{title}")
    )
    said = tmp_path / "said"
    for ignores, within_s, code in ((False, "30", -15), (True, "1", None)):
        said.unlink(missing_ok=True)
        trap = "import signal; signal.signal(15, signal.SIG_IGN); " if ignores else ""
        says = f"{trap}open({str(said)!r}, 'w').close(); import time; time.sleep(60)"
        with subprocess.Popen([title, "-c", says], executable=sys.executable) as member:
            try:
                while not said.exists():
                    assert member.poll() is None
                subprocess.run(["bash", str(script), within_s], check=True, timeout=20)
                assert member.poll() == code
            finally:
                member.kill()
    subprocess.run(["bash", str(script), "5"], check=True, timeout=2)  # nobody is left to wait for


# -- containers ----------------------------------------------------------------------------------


def test_the_image_is_as_its_linter_asks() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    assert hadolint is not None, "make install"
    command = [hadolint, "--format", "json", str(EXAMPLES / "container" / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert json.loads(done.stdout) == []


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    folder = EXAMPLES / "container"
    kept = (folder / "Dockerfile.dockerignore").read_text()
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", (folder / "Dockerfile").read_text(), re.M)
    for name in " ".join(lines).replace("${MACHINE}", "gpu").split():
        assert (EXAMPLES.parent / name).exists(), name
        assert f"!{name}\n" in kept or (name.endswith(".lock") and "!requirements/*.lock" in kept)


# -- systemd ---------------------------------------------------------------------------------------


def test_the_service_waits_longer_than_the_cluster(tmp_path: Path) -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(EXAMPLES / "systemd" / "llumctl.service")
    service = unit["Service"]
    (tmp_path / "c.toml").write_text((EXAMPLES / "systemd" / "llumctl.toml").read_text())
    found = settings.load(config=tmp_path / "c.toml", environ={})
    assert service["Type"] == "notify"
    assert service["KillMode"] == "mixed", "to an instance SIGTERM means that its machine goes away"
    assert float(service["TimeoutStopSec"].removesuffix("s")) >= found.scheduler.grace_s + 30
    start_s = 60 * float(service["TimeoutStartSec"].removesuffix("min"))
    assert start_s >= found.cluster.start_timeout_s + 120


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = (EXAMPLES / "systemd" / "llumctl.service").read_text()
    unit = tmp_path / "llumctl.service"
    unit.write_text(text.replace("/opt/llumctl/bin/llumctl", sys.executable))
    command = ["systemd-analyze", "verify", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
