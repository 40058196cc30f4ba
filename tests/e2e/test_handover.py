"""A real instance that leaves with `--warm` gives its sessions' prompts to another one, and an
instance that is added is filled: each session's next turn computes only what is new, and its answer
is that of a prompt that nobody had cached."""

import asyncio
import random

from controller.api.client import ControlClient
from controller.api.wire.requests import Event
from tests.e2e import steering
from tests.e2e.steering import Story, done, ids_of
from tests.e2e.test_fetches import SAMPLINGS, answers
from tools.cluster import Cluster, wait_for

PROMPT_TOKENS = 1200
"""Of each session's first turn."""
TURN_TOKENS = 70
"""By which each further turn is longer."""

cluster = steering.own_cluster("[cluster]\ninstances = 2\n", "handover")
client = steering.controlled


def test_the_next_turn_finds_its_prompt_after_its_instance_left_and_on_a_new_one(
    cluster: Cluster, client: ControlClient
) -> None:
    dice = random.Random(8)

    def tokens(number: int) -> list[int]:
        return [dice.randrange(300, 4000) for _ in range(number)]

    def next_turn() -> None:
        """Each session says more; the answers are those of the same prompts under a salt."""
        for each in sessions:
            each += tokens(TURN_TOKENS)
        prompts, cached = told(client)
        found = asyncio.run(answers(cluster, sessions))
        now_told = prompts + sum(map(len, sessions))
        wait_for(lambda: told(client)[0] == now_told, "reports of these prompts")
        # The last block of what is cached is not full, and holds the answer of the turn before.
        num_computed = now_told - prompts - (told(client)[1] - cached)
        assert num_computed <= len(sessions) * (TURN_TOKENS + block_size), "computed again"
        assert found == asyncio.run(answers(cluster, sessions, cache_salt="nobody's"))

    cluster.wait_quiet()
    block_size = client.status().instances[0].block_size or 0
    sessions = [tokens(PROMPT_TOKENS) for _ in SAMPLINGS]
    asyncio.run(answers(cluster, sessions))
    cluster.wait_quiet()

    story = Story(client)
    leaver = max(client.status().instances, key=lambda each: each.num_prompt_tokens or 0).id
    done(cluster, "drain", leaver, "--remove", "--warm", "10s", "-y")
    event = handed_over(story, leaver)
    assert (event.numbers["num_tokens"] or 0) >= PROMPT_TOKENS // block_size * block_size
    (stays,) = ids_of(client)
    next_turn()

    story = Story(client)
    done(cluster, "scale", "2", "-y")
    handed_over(story, stays)
    cluster.wait_quiet()
    done(cluster, "drain", stays, "--remove", "-y")
    assert stays not in ids_of(client)
    next_turn()


def told(client: ControlClient) -> tuple[int, int]:
    """Prompt tokens that the instances have begun so far, and how many of them were cached."""
    found = client.status().instances
    return sum(i.num_prompt_tokens or 0 for i in found), sum(
        i.num_cached_tokens or 0 for i in found
    )


def handed_over(story: Story, instance_id: str) -> Event:
    (event,) = wait_for(
        lambda: [e for e in story.events("handed_over") if e.instance_id == instance_id],
        f"an event of what {instance_id} hands over",
    )
    return event
