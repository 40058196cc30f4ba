from hypothesis import given
from hypothesis import strategies as st

from controller.adapters.tcp.transfer import RateLimit


def test_the_next_take_waits_for_the_one_before_and_a_rest_saves_nothing_up() -> None:
    limit = RateLimit()
    assert limit.wait_s(100.0, 1000) == 0
    limit.take(500)
    assert limit.wait_s(100.0, 1000) == 0.5
    assert limit.wait_s(100.25, 1000) == 0.25
    assert limit.wait_s(3600.0, 1000) == 0
    limit.take(100)
    assert limit.wait_s(3600.0, 1000) == 0.1


def test_a_new_limit_holds_at_once() -> None:
    limit = RateLimit()
    limit.wait_s(0.0, 1)
    limit.take(1000)
    assert limit.wait_s(0.0, 1) == 1000
    assert limit.wait_s(0.0, 1000) == 1
    for unlimited in (None, 0):
        assert limit.wait_s(0.0, unlimited) == 0
        limit.take(1 << 40)
    assert limit.wait_s(0.0, None) == 0
    assert limit.wait_s(0.0, 1) == 0  # what went without a limit is not owed later


@given(
    st.floats(1e4, 1e9),
    st.lists(st.tuples(st.floats(0, 10), st.integers(1, 10**7)), min_size=1, max_size=20),
)
def test_never_more_than_the_limit_and_one_take(
    max_bytes_per_s: float, takes: list[tuple[float, int]]
) -> None:
    """The sender waits as told, and sometimes longer."""
    limit, now_s, total = RateLimit(), 0.0, 0
    for number, (rest_s, num_bytes) in enumerate(takes):
        now_s += rest_s if number else 0.0
        while (wait_s := limit.wait_s(now_s, max_bytes_per_s)) > 1e-9:
            now_s += wait_s
        limit.take(num_bytes)
        assert total <= now_s * max_bytes_per_s * (1 + 1e-6) + 1
        total += num_bytes
