"""Places in the batch that are kept for requests which are to enter it: arriving or suspended.

vLLM admits a request while fewer than `max_num_active_reqs` run. Lowered by one for each place
that is kept, the place is still there when its request comes, and vLLM's own limit holds.

A request enters as one that runs but had no turn in the last step. vLLM knows such requests (a
step whose token budget was used up leaves some out): it is served by the next step even beside a
long prefill, since it goes first, is not counted as evicted, and computes one token. Not so with
an adapter: how many adapters a step may have is checked on admission only, so such a request goes
through vLLM's queue of waiting requests that hold blocks, and comes before all others of it.

Touch points of vLLM: v1/core/sched/scheduler.py `max_num_active_reqs`, `running`,
`kv_holding_waiting`, `num_waiting_for_streaming_input`, `schedule`.
"""

from typing import Any


class BatchSlots:
    def __init__(self, scheduler: Any) -> None:
        from vllm.v1.request import RequestStatus

        self._scheduler = scheduler
        self._running, self._evicted = RequestStatus.RUNNING, RequestStatus.PREEMPTED

    def any_free(self) -> bool:
        scheduler = self._scheduler
        num_taken = len(scheduler.running) + len(scheduler.kv_holding_waiting)
        num_taken += scheduler.num_waiting_for_streaming_input
        return bool(num_taken < scheduler.max_num_active_reqs)

    def keep(self) -> None:
        self._scheduler.max_num_active_reqs -= 1

    def give_back(self) -> None:
        self._scheduler.max_num_active_reqs += 1

    def enter(self, request: Any) -> None:
        """With the place that was kept for it. Its row in the worker's batch must be gone if it
        has an adapter."""
        self.give_back()
        if request.lora_request is None:
            request.status = self._running
            self._scheduler.running.insert(0, request)
        else:
            request.status = self._evicted
            self._scheduler.kv_holding_waiting.add_request(request)
