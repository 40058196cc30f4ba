"""How many blocks a batch will hold at most, if nobody joins it and the lengths are known.

Each request takes one token per step until its last step, and then gives everything back. So the
most is held just before one of these last steps.
"""

from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class Future:
    """For each request what it has computed by now, and how many steps from now its last one is."""

    num_computed: list[int] = field(default_factory=list)
    last_steps: list[int] = field(default_factory=list)

    def add(self, num_computed: int, last_step: int) -> None:
        self.num_computed.append(num_computed)
        self.last_steps.append(last_step)

    def extend(self, other: "Future") -> None:
        self.num_computed += other.num_computed
        self.last_steps += other.last_steps

    def peak_blocks(self, block_size: int) -> int:
        """n log n: of all requests that are there in step t, each holds ceil((c + t) / bs) blocks,
        which is q + t // bs, and one more if the remainders of both make another block."""
        if not self.num_computed:
            return 0
        lasts = np.array(self.last_steps)
        order = np.argsort(-lasts)  # so that those who are there in a step stand before it
        steps = lasts[order]
        quotients, rests = np.divmod(
            np.array(self.num_computed)[order] + block_size - 1, block_size
        )
        places = np.arange(len(steps))
        another = np.cumsum(rests[:, None] >= block_size - np.arange(block_size), axis=0)
        blocks = (
            np.cumsum(quotients)
            + (places + 1) * (steps // block_size)
            + another[places, steps % block_size]
        )
        return int(blocks.max())
