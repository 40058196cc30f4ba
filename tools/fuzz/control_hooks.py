"""What schemathesis changes in its calls of the control API, so that the cluster under it lives.

A scaling could start a thousand processes and an evacuation removes its instance for good: both are
planned only. Half of the calls for a request or an instance name one that exists, as a random name
never does.
"""

import itertools
import os
from typing import Any

import httpx
import schemathesis

PLANNED_ONLY = ("/v1/scale", "/v1/instances/{instance_id}/evacuate")
_turns = itertools.count()


def before_call(context: Any, case: Any, kwargs: Any) -> None:  # noqa: ARG001
    """A body keeps being as valid as it was. Unlike `map_body` this is called in every phase."""
    body = case.body
    is_planned = case.operation.path in PLANNED_ONLY and isinstance(body, dict)
    if is_planned and body.get("dry_run", False) is False:
        case.body = {**body, "dry_run": True}


def map_path_parameters(context: Any, path_parameters: Any) -> Any:  # noqa: ARG001
    if not isinstance(path_parameters, dict) or next(_turns) % 2:
        return path_parameters
    known = _known()
    return {name: known.get(name, value) for name, value in path_parameters.items()}


def _known() -> dict[str, str]:
    """A request that lives now, an instance and a member."""
    url, token = os.environ["FUZZED_URL"], os.environ["FUZZED_TOKEN"]
    headers = {"Authorization": f"Bearer {token}"}
    answer = httpx.get(f"{url}/v1/requests?state=running&limit=1", headers=headers, timeout=10)
    found = {"instance_id": "i-1", "member_id": "f-0"}
    for each in answer.json()["requests"]:
        found |= {"request_id": each["id"], "reference": each["id"]}
    return found


schemathesis.hook(before_call)
schemathesis.hook(map_path_parameters)
