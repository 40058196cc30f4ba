"""What API keys may use: counted at frontends, decided at the controller."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.core import scheduler_events as events
from controller.core.admission.api_keys import KeyTable, KeyUse, refusal
from controller.core.admission.policies import SchedulerConfig
from controller.core.record.windows import CountWindow
from controller.core.scheduler import GlobalScheduler
from controller.core.settings import KeyLimits
from tests.unit.core.core_builders import status


def of_key(
    name: str, key: str = "k", frontend_id: str = "f", tokens: int = 100
) -> events.DispatchRequested:
    return events.DispatchRequested(name, frontend_id, tokens, 0, 0.0, api_key=key)


def test_the_window_is_a_minute() -> None:
    window = CountWindow()
    window.add(10, 100.0)
    window.add(5, 100.9)
    window.add(7, 130.0)
    assert window.total(159.9) == 22
    assert window.total(161.0) == 7
    window.take_back(7, 130.5)
    window.take_back(9, 100.0)
    assert window.total(161.0) == 0


def test_of_many_at_once_each_knows_of_those_before_it() -> None:
    use = KeyUse()
    asked = [use.began(of_key(f"r{i}"), 5.0) for i in range(3)]
    assert [(r.num_live_of_key, r.num_tokens_of_key) for r in asked] == [(1, 0), (2, 100), (3, 200)]
    use.emitted("r0", 11, 6.0)
    use.ended("r1", ran=False)
    use.ended("r0", ran=True)
    use.ended("r0", ran=True)
    use.emitted("r0", 11, 6.0)
    use.check()
    last = use.began(of_key("r3"), 7.0)
    assert (last.num_live_of_key, last.num_tokens_of_key) == (2, 211), "r1 never ran"
    assert use.began(of_key("other", key="l"), 7.0).num_live_of_key == 1
    assert use.began(of_key("nobody's", key=""), 7.0).num_live_of_key == 0


def test_news_are_told_once_and_again_to_another_controller() -> None:
    use = KeyUse()
    assert use.news(0.0) == ()
    use.began(of_key("r"), 0.0)
    (told,) = use.news(0.0)
    assert (told.key, told.num_live, told.num_tokens) == ("k", 1, 100)
    assert use.news(1.0) == ()
    use.ended("r", ran=True)
    assert [each.num_live for each in use.news(2.0)] == [0]
    assert [each.num_tokens for each in use.news(70.0)] == [0], "its minute is over"
    assert use.news(71.0) == ()
    use.tell_all_again()
    assert len(use.news(72.0)) == 1


def test_limits_of_its_own_take_the_place_of_the_general_ones_one_by_one() -> None:
    general, own = KeyLimits(10, 1000), {"k": {"live_requests": 2}}
    assert general.of("k", own) == KeyLimits(2, 1000)
    assert general.of("other", own) == general
    assert KeyLimits(5, 0).shared_by(2) == KeyLimits(2, 0)
    assert KeyLimits(1, 1).shared_by(3) == KeyLimits(1, 1)


@pytest.mark.parametrize(
    ("num_used", "most", "retry_after_s"),
    [(99, 100, None), (100, 100, 1), (200, 100, 31), (10**9, 1, 60), (10**9, 0, None)],
)
def test_it_is_told_when_to_come_again(num_used, most, retry_after_s) -> None:
    asked = events.DispatchRequested("r", "f", 9, 0, 0.0, api_key="k", num_tokens_of_key=num_used)
    found = refusal(asked, KeyLimits(tokens_per_minute=most))
    assert (found and found.retry_after_s) == retry_after_s


# -- many frontends, one controller -----------------------------------------------------------

MAX_LIVE = 3


@dataclass
class Front:
    name: str
    use: KeyUse = field(default_factory=KeyUse)
    live: list[str] = field(default_factory=list)


STEPS = st.lists(
    st.tuples(st.sampled_from("fgh"), st.sampled_from(["ask", "ask", "end", "tell"])), max_size=60
)


@given(STEPS)
def test_no_key_ever_has_more_live_requests_than_it_may(steps: list[tuple[str, str]]) -> None:
    table = KeyTable(KeyLimits(live_requests=MAX_LIVE))
    fronts = {name: Front(name) for name in "fgh"}
    for number, (name, what) in enumerate(steps):
        front = fronts[name]
        if what == "ask":
            asked = front.use.began(of_key(f"r{number}", frontend_id=name), 0.0)
            before = sum(len(each.live) for each in fronts.values())
            if table.asked(asked) is None:
                front.live.append(asked.request_id)
            else:
                front.use.ended(asked.request_id, ran=False)
                alone = {each for each, _ in steps[: number + 1]} == {name}
                assert not alone or before >= MAX_LIVE, "its own part is exact"
        elif what == "end" and front.live:
            front.use.ended(front.live.pop(), ran=True)
        elif what == "tell":
            table.told(events.KeysTold(name, front.use.news(0.0)))
        assert sum(len(each.live) for each in fronts.values()) <= MAX_LIVE
        front.use.check()
    for front in fronts.values():
        front.use.tell_all_again()
        table.told(events.KeysTold(front.name, front.use.news(0.0)))
    num_live = sum(len(each.live) for each in fronts.values())
    assert sum(total.num_live for total in table.totals()) == num_live


def test_a_question_that_is_asked_again_does_not_make_the_count_less() -> None:
    table, use = KeyTable(KeyLimits(live_requests=3)), KeyUse()
    asked = [use.began(of_key(f"r{number}"), 0.0) for number in range(3)]
    assert [table.asked(each) for each in (*asked, asked[0])] == [None] * 4
    other = KeyUse().began(of_key("s", frontend_id="g"), 0.0)
    assert table.asked(other) is not None
    use.ended("r2", ran=True)
    table.told(events.KeysTold("f", use.news(0.0)))
    assert table.asked(other) is None


def test_a_client_that_leaves_before_an_instance_is_found_is_told_of() -> None:
    table, use = KeyTable(KeyLimits(live_requests=1)), KeyUse()
    use.began(of_key("before"), 0.0)
    use.ended("before", ran=True)
    table.told(events.KeysTold("f", use.news(0.0)))
    assert table.asked(use.began(of_key("left"), 0.0)) is None
    use.ended("left", ran=False)
    table.told(events.KeysTold("f", use.news(0.0)))
    assert table.asked(KeyUse().began(of_key("r", frontend_id="g"), 0.0)) is None


def test_the_tokens_of_all_frontends_count() -> None:
    table = KeyTable(KeyLimits(tokens_per_minute=1000))
    f, g = KeyUse(), KeyUse()
    assert table.asked(f.began(of_key("a", tokens=600), 0.0)) is None
    assert table.asked(g.began(of_key("b", frontend_id="g", tokens=500), 0.0)) is None
    found = table.asked(g.began(of_key("c", frontend_id="g", tokens=1), 0.0))
    assert found.code is events.RejectCode.TOKEN_LIMIT
    (total,) = table.totals()
    assert (total.num_live, total.num_tokens, total.num_refused) == (2, 1100, 1)
    table.frontend_died("f")
    assert table.asked(g.began(of_key("d", frontend_id="g", tokens=1), 0.0)) is None


def test_the_mean_output_of_a_key_counts_what_ended_and_what_runs() -> None:
    table, use = KeyTable(KeyLimits()), KeyUse()

    def mean(now_s: float, told: KeyUse = use) -> float:
        told.check()
        table.told(events.KeysTold("f", told.news(now_s)))
        return table.mean_output("k")

    use.began(of_key("a"), 0.0)
    assert mean(0.0) == 0.0
    use.emitted("a", 40, 1.0)
    assert mean(1.0) == 40.0, "so far"
    use.emitted("a", 20, 2.0)
    use.ended("a", ran=True)
    use.began(of_key("b"), 2.0)
    assert mean(2.0) == 60.0, "a request without a token says nothing"
    again = KeyUse()
    again.began(of_key("c"), 3.0)
    assert mean(3.0, again) == 60.0, "a frontend that began anew takes nothing back"


def test_the_scheduler_refuses_what_a_key_may_not_and_nothing_that_is_replayed() -> None:
    limits = KeyLimits(live_requests=1)
    scheduler = GlobalScheduler(SchedulerConfig(key_limits=limits), {"vip": {"live_requests": 2}})
    scheduler.handle(events.InstanceStarted("a", 1), 0.0)
    scheduler.handle(status("a"), 0.0)
    use = KeyUse()

    def ask(name: str, key: str, replayed: bool = False) -> str:
        asked = events.DispatchRequested(name, "f", 16, 0, 0.0, replayed=replayed, api_key=key)
        (told,) = scheduler.handle(use.began(asked, 0.0), 0.0)
        return getattr(told, "code", "sent")

    assert [ask(f"a{i}", "k") for i in range(2)] == ["sent", "live_limit"]
    assert [ask(f"b{i}", "vip") for i in range(3)] == ["sent", "sent", "live_limit"]
    assert [ask(f"c{i}", "") for i in range(3)] == ["sent"] * 3
    assert ask("d", "k", replayed=True) == "sent"
    scheduler.reconfigure(SchedulerConfig(), 0.0)
    assert ask("e", "k") == "sent"
    scheduler.handle(events.FrontendDied("f"), 0.0)
    assert sum(total.num_live for total in scheduler.keys.totals()) == 0
