"""The console's facts of an instance are the figures of its status, as tables write them."""

import re

from controller.api.text.quantities import duration, latency
from controller.api.wire.status import InstanceState, InstanceStatus
from controller.api.wire.stream import StatusFrame
from tools import synthetic_cluster as synthetic
from tui.drawing import UNICODE
from tui.panes import instances
from tui.state import Arrived, DashboardState, reduce


def known(item: InstanceStatus) -> dict[str, str]:
    def number(found: float | None) -> str:
        return "-" if found is None else f"{found:.0f}"

    usage, total, free = item.kv_cache_usage, item.num_total_blocks, item.num_free_blocks
    moves = [number(item.num_moves_in), number(item.num_moves_out)]
    draining = item.state is InstanceState.DRAINING
    return {
        "freeness": "-inf" if draining else number(item.freeness_steps),
        "kv": "-" if usage is None else f"{100 * usage:.0f}%",
        "running": number(item.num_running_reqs),
        "waiting": number(item.num_waiting_reqs),
        "evictions": number(item.num_evictions),
        "moves": "-" if "-" in moves else "/".join(moves),
        "blocks": "-" if total is None or free is None else f"{total - free}/{total}",
        "headroom": number(item.headroom_blocks),
        "step": latency(item.step_time_s),
        "restarts": number(item.num_restarts),
        "age": duration(item.age_s),
    }


def drawn(state: DashboardState, instance_id: str) -> dict[str, str]:
    """The facts below the table, a line each."""
    drawn_lines = instances.facts(state, instance_id, 44, UNICODE)
    lines = ["".join(span.text for span in line) for line in drawn_lines]
    facts = {line[1:12].strip(): line[13:].strip() for line in lines}
    moves = re.findall(r"[\d-]+", facts["moves"])
    used = re.search(r"(\d+)(?: \+\w+)?%", facts["kv"])
    (restarts,) = re.findall(r"\((\d+) restarts\)", facts["incarnation"])
    first = {name: facts[name].split()[0] for name in ("freeness", "running", "headroom", "step")}
    return {
        **first,
        "kv": f"{used[1]}%" if used else "-",
        "waiting": facts["waiting"],
        "evictions": facts["evictions"],
        "moves": "-" if "-" in moves else "/".join(moves),
        "blocks": "/".join(re.findall(r"\d+", facts["blocks"])[:2]) or "-",
        "restarts": restarts,
        "age": facts["status"].split()[0],
    }


def test_the_facts_of_instances_in_all_states() -> None:
    status = next(synthetic.frames(1)).status
    frame = StatusFrame(time_s=synthetic.START_S, status=status)
    state = reduce(DashboardState(), [Arrived(frame, synthetic.START_S)])
    for item in status.instances:
        assert drawn(state, item.id) == known(item), item.id
