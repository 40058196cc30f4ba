from controller.api.text.status_words import cached_percent
from controller.api.wire.status import InstanceStatus
from tools import synthetic_cluster as synthetic


def _instance(prompt: int, cached: int = 0, fetched: int = 0, loaded: int = 0) -> InstanceStatus:
    return synthetic.instance(
        "i-0",
        num_prompt_tokens_last_minute=prompt,
        num_cached_tokens_last_minute=cached,
        num_fetched_tokens_last_minute=fetched,
        num_loaded_tokens_last_minute=loaded,
    )


def test_the_cached_share_says_how_much_was_brought_from_elsewhere() -> None:
    assert cached_percent([_instance(1000, 930)]) == "93%"
    assert cached_percent([_instance(1000, 930, fetched=120)]) == "93%, 12% fetched"
    assert cached_percent([_instance(1000, 930, loaded=50)]) == "93%, 5% loaded"
    several = [_instance(1000, 900, 100, 0), _instance(3000, 700, 100, 400)]
    assert cached_percent(several) == "40%, 5% fetched, 10% loaded"


def test_without_prompts_there_is_no_share() -> None:
    assert cached_percent([]) == "-"
    assert cached_percent([_instance(0)]) == "-"
