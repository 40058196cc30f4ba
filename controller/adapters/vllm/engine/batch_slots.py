"""Places in the batch that are kept for requests that will enter it: arriving or suspended ones.

vLLM admits a request while fewer than `max_num_active_reqs` run. That limit is lowered by one for
each place that is kept, so that the place is free when its request enters.

A request enters as one that runs but had no turn in the last step. vLLM knows such requests, as a
step whose token budget is used up leaves some out: the request goes first in the next step, even
beside a long prefill, computes one token and is not counted as evicted. A request with an adapter
enters otherwise: vLLM checks on admission only how many adapters a step may have, so this request
goes through vLLM's queue of waiting requests that hold blocks, ahead of the others there.

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
        """Lets the request into the place that was kept for it. If it has an adapter, its row in
        the worker's batch must be gone."""
        self.give_back()
        if request.lora_request is None:
            request.status = self._running
            self._scheduler.running.insert(0, request)
        else:
            request.status = self._evicted
            self._scheduler.kv_holding_waiting.add_request(request)
