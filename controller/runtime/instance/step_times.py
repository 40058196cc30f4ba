"""What the steps of an engine took."""


class StepTimes:
    """Counts steps as they end; times in seconds, of one clock."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.step_time_s = 0.0
        """Of the last step."""
        self.busy_s = 0.0
        """Of all steps, with what lay between steps that followed each other."""
        self._ended_s: float | None = None
        """When the last step ended; None if there was no work since."""

    def step(self, started_s: float, ended_s: float) -> None:
        self.num_steps += 1
        self.step_time_s = ended_s - started_s
        self.busy_s += ended_s - (started_s if self._ended_s is None else self._ended_s)
        self._ended_s = ended_s

    def rest(self) -> None:
        """The engine has nothing to do, so the next step follows none."""
        self._ended_s = None
