"""Simulated runs as bars in a terminal: one figure per block, a bar per load and policy."""

from collections.abc import Sequence

from controller.sim.run import Ran
from llumctl.simulate.blocks import bar
from llumctl.simulate.groups import Figure, count, grouped, latency
from llumctl.simulate.report import described, number

FIGURES: tuple[tuple[str, Figure], ...] = (
    ("ttft_s p99", latency("ttft_s", "p99")),
    ("ttft_s mean", latency("ttft_s", "mean")),
    ("longest_pause_s p99", latency("longest_pause_s", "p99")),
    ("preemption_loss_s", count("preemption_loss_s")),
)
BAR_WIDTH = 40


def drawn(ran: Sequence[Ran]) -> str:
    """Each figure has a scale of its own, from 0 to its largest mean."""
    groups = grouped(ran)
    names = [
        f"{described(group)}  {seeds.policy}" if len(groups) > 1 else seeds.policy
        for group in groups
        for seeds in group.policies
    ]
    width = max(map(len, names))
    blocks = []
    for title, figure in FIGURES:
        means = [seeds.mean(figure) for group in groups for seeds in group.policies]
        highest = max((mean.mean for mean in means if mean is not None), default=0.0)
        lines = [title]
        for name, mean in zip(names, means, strict=True):
            if mean is not None:
                share = mean.mean / highest if highest > 0 else 0.0
                lines.append(f"  {name:<{width}}  {number(mean.mean):>8}  {bar(share, BAR_WIDTH)}")
        blocks.append("\n".join(line.rstrip() for line in lines))
    return "\n\n".join(blocks)
