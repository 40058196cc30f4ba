"""A cluster of emulated instances that runs itself, and operators who steer it by the commands.

Every token of every answer is checked (`controller.api.token_sequence`): nothing that moves,
however often, may lose, double or change one.
"""

import os
import signal
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from controller.api.client import ControlClient
from controller.api.operations.on_requests import PriorityRequest, SetPriority
from tests.e2e import emulated, steering
from tests.e2e.emulated import (
    CONFIG,
    NUM_INSTANCES,
    TARGET_BLOCKS,
    Answer,
    check,
    check_cut,
    held,
    one_on_each,
)
from tests.e2e.steering import (
    Load,
    Story,
    change,
    done,
    drain,
    ids_of,
    instance,
    json_of,
    num_running,
    num_used_blocks,
    undrain,
)
from tools.cluster import Cluster, hear_interrupts, wait_for

EXAMPLES = Path(__file__).parents[2] / "examples"
NUM_CLIENTS = NUM_INSTANCES * 3 // 2


cluster = emulated.shared
client = steering.steered


def answers(cluster: Cluster, count: int, num_prompt: int, num_output: int) -> list[Answer]:
    """All of them running before it returns."""
    found = [Answer(cluster, num_prompt, num_output) for _ in range(count)]
    for each in found:
        each.wait_tokens(1)
    return found


def test_an_overloaded_instance_is_relieved_before_it_evicts(
    cluster: Cluster, client: ControlClient
) -> None:
    """Five requests on one instance want 145 of its 127 blocks in the end; the others are empty."""
    first, *others = ids_of(client)
    story = Story(client)
    done(cluster, "drain", *others, "-y", "-m", "all to one")
    assert done(cluster, "status", "-o", "table").stdout.count("safe-to-delete") == len(others)
    busy = answers(cluster, 5, 128, 330)
    assert {each.status(client).instance_id for each in busy} == {first}
    undrain(client, *others)
    check(busy)
    moves = story.moves("balance")
    assert moves, "nothing moved"
    assert story.events("evicted", "failed") == []
    move = moves[0]
    where, to = move.labels["from"], move.labels["to"]
    text = done(cluster, "requests", str(move.request_id)).stdout
    assert f"migrated from {where} to {to} (balance)\n" in text
    found = json_of(cluster, "requests", str(move.request_id))["explanation"]
    steps = {step["kind"]: step for step in found["steps"]}
    assert steps["dispatched"]["num_considered"] == 1, "all others drained"
    considered = {item["instance_id"]: item["figure"] for item in steps["migrated"]["candidates"]}
    assert considered[to] > 48 > steps["migrated"]["freeness_steps"]


def test_a_cordoned_instance_keeps_what_it_has_and_gets_nothing(
    cluster: Cluster, client: ControlClient
) -> None:
    """Also from the next controller, which knows the settings, and after whose death the frontend
    dispatches by itself meanwhile."""
    first, *others = ids_of(client)
    drain(client, *others)
    kept = answers(cluster, 1, 128, 300)
    undrain(client, *others)
    done(cluster, "cordon", first, "-m", "to be looked at")
    story = Story(client)
    table = done(cluster, "status", "-o", "table").stdout.splitlines()
    assert any(line.split()[:2] == [first, "cordoned"] for line in table)
    elsewhere = answers(cluster, len(others), 128, 200)
    assert first not in {each.status(client).instance_id for each in elsewhere}
    ours = ("migration.max_moves=3", "scheduler.policy=vllm-dp")
    revision = json_of(cluster, "set", *ours)["revision"]
    before = {each.id: each.incarnation for each in client.status().instances}
    os.kill(cluster.controller_pid, signal.SIGKILL)
    Answer(cluster, 20, 5).check()
    done(cluster, "status", "--wait=ready", "--timeout", "60")
    assert {each.id: each.incarnation for each in client.status().instances} == before
    assert client.status().policy == "vllm-dp"
    more = ("migration.max_moves=4", "--if-revision", str(revision))
    assert '"previous": 3' in done(cluster, "set", *more, "-o", "json").stdout
    assert instance(client, first).closed_by == ("cordoned",)
    later = answers(cluster, len(others), 128, 60)
    assert first not in {each.status(client).instance_id for each in later}
    check([*kept, *elsewhere, *later])
    assert [event for event in story.events("migrated") if event.instance_id == first] == []
    done(cluster, "uncordon", first)
    drain(client, *others)
    back = answers(cluster, 1, 128, 60)
    assert {each.status(client).instance_id for each in back} == {first}
    check(back)


def test_a_long_prompt_that_fits_nowhere_gets_in_because_others_are_moved(
    cluster: Cluster, client: ControlClient
) -> None:
    """One request on each instance leaves 72 to 98 of its 127 blocks free; the prompt needs 100,
    and gets in before the others have their 420 tokens, which take 8 s."""
    story = Story(client)
    others = answers(cluster, NUM_INSTANCES, 450, 420)
    wait_for(
        lambda: max(item.num_free_blocks or 0 for item in client.status().instances) < 100,
        "one on each",
    )
    long = Answer(cluster, 1600, 2)
    assert long.wait_tokens(1)
    assert not any(each.ended for each in others), "it waited until somebody had ended"
    assert story.moves("room"), story.events("migrated", "not_moved")
    assert story.events("evicted", "failed") == []
    check([long, *others])


def test_a_request_that_becomes_urgent_gets_its_instance_to_itself(
    cluster: Cluster, client: ControlClient
) -> None:
    """The load beside a running request of the level `high` is brought down to 40 blocks. The API's
    client stands for the commands, for each of which a busy machine takes seconds."""
    first, *others = ids_of(client)
    story = Story(client)
    drain(client, *others)
    urgent = Answer(cluster, 32, 450)
    urgent.wait_tokens(1)
    request_id = urgent.status(client).id
    wanted = PriorityRequest(level="high", reason="somebody waits")
    client.send(SetPriority(request_id, wanted))
    neighbours = answers(cluster, 4, 192, 350)
    wait_for(lambda: num_used_blocks(client, first) > TARGET_BLOCKS, "a status with their blocks")
    undrain(client, *others)
    wait_for(lambda: num_used_blocks(client, first) <= TARGET_BLOCKS, "the load beside it to go")
    assert urgent.status(client).instance_id == first, "the neighbours leave, not it"
    assert len(story.moves("headroom")) >= 2
    assert len(story.events("priority_changed")) == 1
    check([urgent, *neighbours])
    assert story.events("evicted", "failed") == []


def test_an_operator_ends_requests(cluster: Cluster, client: ControlClient) -> None:
    """Each client gets one error that says so, streamed or not; the others' answers are whole."""
    story = Story(client)
    (other,) = answers(cluster, 1, 64, 300)
    (streamed,) = answers(cluster, 1, 64, 900)  # two commands take seconds on a busy machine
    request_id = streamed.status(client).id
    assert (
        "running -> would be aborted"
        in done(cluster, "abort", request_id, "--dry-run", code=10).stdout
    )
    done(cluster, "abort", request_id, "-m", "a test of it")
    wait_for(lambda: streamed.ended, "the stream to end")
    error = streamed.error["error"]
    assert (error["code"], error["type"]) == (410, "RequestAbortedError")
    assert error["message"] == "an operator ended this request"
    assert "it was aborted" in done(cluster, "abort", request_id, code=5).stderr

    body = {"model": "embedded", "prompt": "A door", "max_tokens": 400, "ignore_eos": True, "n": 2,
            "temperature": 1.0}  # fmt: skip
    headers = {"X-Request-Id": "two-choices"}

    def known() -> list[str]:
        requests = client.requests().requests
        return [each.client_id for each in requests if "two-choices" in each.client_id]

    with ThreadPoolExecutor(1) as pool:
        url = f"{cluster.url}/v1/completions"
        whole = pool.submit(httpx.post, url, json=body, headers=headers, timeout=60)
        client_id = wait_for(known, "the request to be known")[0]
        found = json_of(cluster, "abort", client_id)
    assert len(found["request_ids"]) == 2
    assert whole.result().status_code == 410
    assert whole.result().json()["error"]["message"] == "an operator ended this request"

    ended = story.events("aborted")
    assert {event.request_id for event in ended} == {request_id, *found["request_ids"]}
    assert all(event.actor for event in ended)
    check([other])
    wait_for(
        lambda: not any(num_used_blocks(client, each) for each in ids_of(client)), "free blocks"
    )
    assert story.events("failed") == []


def test_scaling_and_draining_under_load(cluster: Cluster, client: ControlClient) -> None:
    """A new instance fills by moves, others are emptied by moves, and no request fails or gets
    another token."""
    story = Story(client)
    # A request outlives a dry run and the start of a drain, each a process of its own; with 300
    # tokens the busiest instance sometimes had nothing left to move.
    with Load(NUM_CLIENTS, lambda _: Answer(cluster, 64, 700).check()) as load:
        # Those that have two are now below the threshold, and one that has one is well above.
        even = ("migration.source_below_steps=1000", "migration.destination_above_steps=1000")
        done(cluster, "set", *even)
        done(cluster, "scale", "+1", "--if-revision", "0", code=6)
        (new,) = json_of(cluster, "scale", "+1", "--wait")["added"]
        wait_for(lambda: story.moves("balance", to=new), f"{new} to be filled by moves")

        busy = max(client.status().instances, key=lambda item: item.num_running_reqs or 0).id
        planned = json_of(cluster, "drain", busy, "--dry-run", code=10)["drains"][0]
        assert planned["plan"], "it has nothing that would go"
        drained = done(cluster, "drain", busy, "-y", "--deadline", "60", "-m", "maintenance")
        assert f"{busy}: safe to delete" in drained.stderr
        assert story.moves("drain")
        assert num_running(client, busy) == 0
        done(cluster, "status", f"--wait=drained={busy}", "--timeout", "0")
        done(cluster, "uncordon", busy)
        wait_for(lambda: num_running(client, busy), f"{busy} to serve again")

        done(cluster, "scale", "-1", code=5)
        gone = json_of(cluster, "scale", "-1", "-y", "--wait", "--deadline", "60")
        (drain,) = gone["draining"]
        assert (drain["state"], gone["target"]) == ("removed", NUM_INSTANCES)
        assert drain["instance_id"] not in ids_of(client)
        assert load.check() >= NUM_CLIENTS
    assert story.events("failed") == []


def test_what_is_tuned_is_tried_kept_and_taken_back(
    cluster: Cluster, client: ControlClient
) -> None:
    """By the commands, on the file that the cluster was started with: no other line of it changes,
    and what is not kept there is what `get --toml` prints."""
    key = "migration.max_moves_per_minute"
    (busy,) = answers(cluster, 1, 64, 250)
    where = str(busy.status(client).instance_id)
    low, high = "migration.source_below_steps=100000", "migration.destination_above_steps=200000"
    tried = json_of(cluster, "set", low, high, "--dry-run", code=10)
    then = {role["instance_id"]: role["then"] for role in tried["roles"]}
    assert then.pop(where) == "source", "it has a request, which must leave"
    assert set(then.values()) == {"neither"}

    saved = done(cluster, "set", f"{key}=3", "--save")
    path = Path(saved.stderr.partition("saved in ")[2].splitlines()[0].rstrip(":"))
    kept = path.read_text()
    assert kept.startswith(CONFIG.rstrip("\n"))
    assert tomllib.loads(kept)["migration"] == {"max_moves_per_minute": 3}
    done(cluster, "set", f"{key}=4")
    unsaved = tomllib.loads(done(cluster, "set", "--toml").stdout)
    assert unsaved == {"migration": {"max_moves_per_minute": 4}}

    assert f"set {key}=3" in done(cluster, "undo").stdout
    assert json_of(cluster, "set", key)["settings"][0]["value"] == 3
    assert f"set {key}=4" in done(cluster, "undo").stdout, "the second takes the first one back"
    assert path.read_text() == kept, "an undo is about the running cluster"
    done(cluster, "drain", where, "-y", "--detach")
    assert f"uncordon {where}" in done(cluster, "undo").stdout
    assert client.drains().drains == ()
    check([busy])
    path.write_text(CONFIG)


# -- examples -----------------------------------------------------------------------------


def example(cluster: Cluster, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As an operator calls it, with `llumctl` on the path."""
    path = os.pathsep.join((str(Path(cluster.llumctl).parent), os.environ["PATH"]))
    command = [str(EXAMPLES / name), *arguments]
    if name.endswith(".py"):
        command.insert(0, sys.executable)
    return subprocess.run(
        command,
        env={**cluster.env, "PATH": path, "LLUMCTL_CLUSTER_NAME": cluster.name},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=hear_interrupts,
    )


def test_the_example_of_maintenance(cluster: Cluster, client: ControlClient) -> None:
    """What it does with refusals and failures: tests/unit/test_examples.py."""
    first = ids_of(client)[0]
    neighbours = answers(cluster, NUM_INSTANCES, 64, 150)
    look = f"llumctl status --wait=drained={first} --timeout 0 && echo worked"
    found = example(cluster, "drain-for-maintenance.sh", first, "sh", "-c", look)
    assert (found.returncode, found.stdout) == (0, "worked\n"), found.stderr
    assert client.drains().drains == ()
    check(neighbours)


@pytest.mark.full
def test_the_example_of_the_night(cluster: Cluster, client: ControlClient) -> None:
    count = len(ids_of(client))
    done(cluster, "drain", ids_of(client)[1], "-y")
    left_alone = example(cluster, "nightly-scale.sh", str(count - 2))
    assert left_alone.returncode == 0
    assert f"an operator has drained {ids_of(client)[1]}" in left_alone.stderr
    done(cluster, "uncordon", ids_of(client)[1])
    for wanted in (count - 2, count - 1):
        found = example(cluster, "nightly-scale.sh", str(wanted))
        assert found.returncode == 0, found.stderr
        assert [each.state for each in client.status().instances] == ["active"] * wanted


def test_the_example_of_priorities(cluster: Cluster, client: ControlClient) -> None:
    story = Story(client)
    options = ("--base-url", f"{cluster.url}/v1", "--batch", "4", "--interactive", "2")
    found = example(cluster, "priority_client.py", *options, "--max-tokens", "32")
    assert found.returncode == 0, found.stderr
    assert found.stderr.splitlines()[-1].startswith("batch:"), "last"
    levels = [event.level for event in story.events("finished")]
    assert (levels.count("high"), levels.count("normal")) == (2, 4)


@pytest.mark.last
def test_down_ends_what_runs_and_what_is_held_at_its_deadline(cluster: Cluster) -> None:
    with cluster.control() as client:
        change(client, {"scheduler.policy": "llumnix+"})
        found = [*one_on_each(cluster, client), *held(cluster, client, 2)]

    def probed(path: str) -> int:
        return httpx.get(f"{cluster.url}{path}", timeout=10).status_code

    assert probed("/ready") == 200
    with ThreadPoolExecutor(1) as pool:
        down = pool.submit(check_cut, cluster, found, "--timeout", "3")
        wait_for(lambda: probed("/ready") == 503, "load balancers to be sent away")
        assert probed("/health") == 200, "its requests still run"
        down.result()
