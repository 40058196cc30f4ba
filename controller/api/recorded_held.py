"""The queue at the controller in a recording: who was held at that moment, in which place.

A recording tells of a held request only that it waited, at no instance: its place follows from its
rank and arrival, its demand from its prompt. The instance that was kept for it is in the status.
"""

from collections.abc import Iterable

from controller.api.wire.requests import RequestState, RequestStatus
from controller.api.wire.status import ClusterStatus, HeldPlaceStatus


def with_places(
    requests: Iterable[RequestStatus], status: ClusterStatus | None
) -> list[RequestStatus]:
    """`status`: of the moment; without held requests in it none is given a place."""
    found = list(requests)
    if status is None or status.held is None:
        return found
    ranks = {level.name: level.rank for level in status.levels}
    held = [item for item in found if _is_held(item)]
    held.sort(key=lambda r: (-ranks.get(r.level, 0), r.arrival_time_s, r.id, r.frontend_id))
    places = {id(item): _place(item, place, status) for place, item in enumerate(held, 1)}
    return [
        item if id(item) not in places else item.model_copy(update={"held": places[id(item)]})
        for item in found
    ]


def _is_held(item: RequestStatus) -> bool:
    return item.state is RequestState.WAITING and item.instance_id is None


def _place(item: RequestStatus, place: int, status: ClusterStatus) -> HeldPlaceStatus:
    held = status.held
    if held is not None and held.head.request_id == item.id:
        return HeldPlaceStatus(**{name: getattr(held.head, name) for name in _FIELDS})
    sizes = (each.block_size for each in status.instances if each.block_size)
    block_size = next(sizes, None)
    kept = next(
        (
            (each.id, each.kept_for.lacking_blocks)
            for each in status.instances
            if each.kept_for is not None and each.kept_for.request_id == item.id
        ),
        (None, None),
    )
    return HeldPlaceStatus(
        place=place,
        why="kept" if kept[0] else "",
        demand_blocks=None if block_size is None else -(-item.num_prompt_tokens // block_size),
        instance_id=kept[0],
        lacking_blocks=kept[1],
    )


_FIELDS = tuple(HeldPlaceStatus.model_fields)
