"""What the control API reads and answers is as `wire_schema.json` has it, a line for each field.

`make wire-schema` writes that file. It has what scripts and recordings depend on: names, types,
enums, bounds, defaults, and what is required; it has no descriptions.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from controller.adapters.http import control_server
from controller.api.recording import RecordingHeader
from controller.api.wire.status import AutoscaleReport, DoctorReport

KEPT = Path(__file__).with_name("wire_schema.json")
NOT_CALLED: tuple[type[BaseModel], ...] = (AutoscaleReport, DoctorReport, RecordingHeader)
"""No call has them: commands print them, or a recording begins with one."""
PROSE = ("title", "description", "summary")


@pytest.mark.long
def test_the_control_api_speaks_as_before() -> None:
    found = dict(lines())
    if os.environ.get("UPDATE_SNAPSHOTS") == "1":
        written = (f"{json.dumps(name)}: {shown(found[name])}" for name in sorted(found))
        KEPT.write_text("{\n" + ",\n".join(written) + "\n}\n", encoding="utf-8")
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    changes = [
        f"{name}: {shown(kept.get(name))} is now {shown(found.get(name))}"
        for name in sorted(kept.keys() | found.keys())
        if kept.get(name) != found.get(name)
    ]
    told = (
        "Within one schema_version fields are only added (controller/api/wire/__init__.py). If the"
        " change is meant, `make wire-schema` writes the file anew, and CHANGELOG.md tells it."
    )
    assert not changes, "\n".join((f"not as in {KEPT.name}:", *changes, told))


def lines() -> Iterator[tuple[str, Any]]:
    """(name, what holds of it) of each model, MODEL.FIELD, METHOD PATH, and its parameters."""
    described = control_server.description()
    models = described["components"]["schemas"]
    for model in NOT_CALLED:
        schema = model.model_json_schema(ref_template="{model}", mode="serialization")
        models |= {**schema.pop("$defs", {}), model.__name__: schema}
    for name, schema in models.items():
        plain = without_prose(schema)
        fields, required = plain.pop("properties", {}), plain.pop("required", ())
        yield name, plain
        for field, each in fields.items():
            yield f"{name}.{field}", {**each, "required": True} if field in required else each
    for path, calls in described["paths"].items():
        for method, call in calls.items():
            plain = without_prose(call)
            for each in plain.pop("parameters"):
                yield f"{method.upper()} {path} {each['name']}", each
            yield f"{method.upper()} {path}", plain


def without_prose(schema: Any) -> Any:
    """The schema without what is for readers alone, and in one order. A property may have the name
    of such a key, so texts alone are left out."""
    if isinstance(schema, dict):
        return {
            key: sorted(each) if key == "enum" else without_prose(each)
            for key, each in schema.items()
            if not (key in PROSE and isinstance(each, str))
        }
    if isinstance(schema, list):
        return [without_prose(each) for each in schema]
    return schema.rpartition("/")[2] if isinstance(schema, str) and schema[:2] == "#/" else schema


def shown(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
