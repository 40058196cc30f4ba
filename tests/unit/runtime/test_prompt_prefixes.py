"""What a frontend tells of prompts' beginnings."""

from hypothesis import given
from hypothesis import strategies as st

from controller.core.load.cached_prefixes import PREFIX_TOKENS
from controller.core.scheduler_events import DispatchRequested
from controller.runtime.frontend.traffic_recorder import MAX_NAMES, PromptPrefixes
from controller.runtime.messages.codec import decode, encode
from controller.runtime.messages.members import FrontendLimits
from controller.runtime.messages.requests import DispatchAsked
from tests.unit.runtime.fakes import FakeNetwork, settle, virtual_time
from tests.unit.runtime.router_bed import Bed

PROMPT = list(range(1000))


def switched_on() -> PromptPrefixes:
    prefixes = PromptPrefixes()
    prefixes.switch(True)
    return prefixes


@virtual_time
async def test_a_frontend_hashes_only_while_the_controller_goes_by_it(network: FakeNetwork) -> None:
    bed = Bed(network)
    prefixes = bed.router.prompt_prefixes
    assert prefixes.of(PROMPT) == ()
    bed.say(FrontendLimits(hash_prefixes=True))
    await settle()
    assert len(prefixes.of(PROMPT)) == 3
    bed.say(FrontendLimits())
    await settle()
    assert prefixes.of(PROMPT) == ()


@given(shared=st.integers(0, 1000), first=st.integers(0, 600), second=st.integers(0, 600))
def test_prompts_have_the_hashes_of_the_whole_blocks_that_they_share(shared, first, second) -> None:
    prefixes = switched_on()
    one = prefixes.of([*range(shared), *[-1] * first])
    other = prefixes.of([*range(shared), *[-2] * second])
    num_shared = shared // PREFIX_TOKENS
    assert one[:num_shared] == other[:num_shared]
    assert not set(one[num_shared:]) & set(other[num_shared:])
    assert (len(one), len(other)) == (
        (shared + first) // PREFIX_TOKENS,
        (shared + second) // PREFIX_TOKENS,
    )


def test_what_the_prefix_cache_keeps_apart_has_other_hashes() -> None:
    prefixes = switched_on()
    each = [prefixes.of(PROMPT, *apart)[0] for apart in [(), ("s",), ("t",), (None, "s")]]
    assert len(set(each)) == 4
    assert prefixes.of(PROMPT, None, None) == prefixes.of(PROMPT)


def test_the_hashes_of_the_longest_prompt_are_few_and_go_over_the_wire() -> None:
    hashes = switched_on().of(range(300_000))
    assert len(set(hashes)) == MAX_NAMES == 262_144 // PREFIX_TOKENS
    asked = DispatchAsked(DispatchRequested("r", "f-0", 300_000, 0, 0.0, "", hashes, PREFIX_TOKENS))
    assert decode(encode(asked)) == asked
    assert len(encode(asked)) < 9 * MAX_NAMES + 300
