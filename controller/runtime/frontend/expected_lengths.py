"""How many tokens this frontend's requests are expected to put out, by what their sessions did.

Each frontend goes by its own requests alone. It notes nothing while the controller does not ask.
"""

from controller.core.prediction.length_predictor import LengthPredictor, LengthPredictorConfig
from controller.core.record.request_record import RequestRecord, RequestState


class ExpectedLengths:
    def __init__(self) -> None:
        self._predictor: LengthPredictor | None = None
        self._sessions: dict[str, str | None] = {}
        """Of the live requests that came since it was switched on."""

    def switch(self, on: bool) -> None:
        """Switched off it forgets what it knew."""
        if on and self._predictor is None:
            self._predictor = LengthPredictor(LengthPredictorConfig())
        elif not on:
            self._predictor = None
            self._sessions.clear()

    def expect(self, request_id: str, session: str, max_output_tokens: int | None) -> int:
        """The output tokens of a request that comes now; 0 if too little is known."""
        if self._predictor is None:
            return 0
        client = self._sessions[request_id] = session or None
        return self._predictor.predict(client, max_output_tokens=max_output_tokens) or 0

    def ended(self, record: RequestRecord) -> None:
        """Learns from a request that ended by itself or by its limit."""
        if record.request_id not in self._sessions:
            return
        client = self._sessions.pop(record.request_id)
        if self._predictor is not None and record.state == RequestState.FINISHED:
            self._predictor.observe(client, record.num_output_tokens)
