"""Auto-scaling as facts, one to a line."""

from controller.api.text import autoscale_words as words
from controller.api.text.quantities import duration
from controller.api.wire.status import AutoscaleStatus
from llumctl import meant
from llumctl.text import output


def render(status: AutoscaleStatus, now_s: float) -> str:
    """`now_s`: seconds since the epoch."""
    wanted = "" if status.num_wanted is None else f", {status.num_wanted} wanted"
    facts = [("mode", words.state(status))]
    if held := words.held(status, now_s):
        facts.append(("held", meant.aimed(held)))
    facts += [
        ("instances", f"{words.instances(status)}{wanted}"),
        ("targets", words.targets(status) or "none"),
    ]
    if status.last is not None:
        facts.append(("last look", words.decision(status.last, now_s)))
    if status.last_change is not None:
        facts.append(("last change", words.decision(status.last_change, now_s)))
    if status.next_check_in_s is not None:
        facts.append(("next look", f"in {duration(status.next_check_in_s)}"))
    if status.cold_start_s is not None:
        facts.append(("a start takes", duration(status.cold_start_s)))
    return output.facts(facts)
