"""An instance that hangs for a while is not chosen. One that hangs for longer is fenced: its
requests go on elsewhere, and it drops them when it wakes."""

import os
import signal

from tests.e2e.emulated import Answer, check
from tests.e2e.steering import Story, change, instance, left_as_found
from tools.cluster import Cluster, is_empty, wait_for

NUM_ANSWERS = 12


def test_a_frozen_instance_is_not_chosen_and_comes_back(six: Cluster) -> None:
    with six.control() as client, left_as_found(client):
        change(client, {"scheduler.stall_timeout_s": 1.0})
        frozen = client.status().instances[0]
        os.kill(frozen.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: instance(client, frozen.id).state == "stalled", "the stall to show")
            check(Answer(six, 20, 10) for _ in range(NUM_ANSWERS))
        finally:
            os.kill(frozen.pid, signal.SIGCONT)
        wait_for(lambda: instance(client, frozen.id).state == "active", "the thaw")
        assert instance(client, frozen.id).incarnation == frozen.incarnation


def test_a_hung_instance_is_fenced_and_wakes_as_another(six: Cluster) -> None:
    with six.control() as client, left_as_found(client):
        story = Story(client)
        answers = [Answer(six, 60, 300) for _ in range(NUM_ANSWERS)]
        for answer in answers:
            assert answer.wait_tokens(1)
        change(client, {"scheduler.stall_timeout_s": 1.0, "scheduler.fence_after_s": 4.0})
        hung = max(client.status().instances, key=lambda each: each.num_running_reqs or 0)
        assert hung.num_running_reqs, "its requests have ended"
        assert hung.pid is not None
        os.kill(hung.pid, signal.SIGSTOP)
        try:
            replayed = wait_for(lambda: story.events("replayed"), "replays")
            check(answers)
        finally:
            os.kill(hung.pid, signal.SIGCONT)
        (died,) = story.events("instance_died")
        assert (died.instance_id, "fenced" in died.reason) == (hung.id, True)
        assert {event.labels["from"] for event in replayed} == {hung.id}
        saved = {(each.way, each.reason) for each in client.status().replays.saved}
        assert saved & {("replayed", "fenced"), ("dispatched_again", "fenced")}

        def awake() -> bool:
            found = instance(client, hung.id)
            has_reported = found.num_running_reqs is not None
            is_another = found.incarnation > hung.incarnation
            return is_another and has_reported and is_empty(found.model_dump())

        wait_for(awake, "it to wake as another, without what it ran")
        assert instance(client, hung.id).pid == hung.pid, "its process was replaced"
        Answer(six, 20, 10).check()
