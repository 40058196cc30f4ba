"""The messages of the control API, as pydantic models. This file has what all of them share.

Compatibility: within one `schema_version` fields are only added, never renamed, retyped or removed,
and readers ignore fields that they do not know. This holds for the control API, for what `-o json`
prints of its models, and for recordings, whose frames are these models. A unit test compares all
models with `tests/unit/wire_schema.json`, and CHANGELOG.md records each change of that file.

Units are in the names of the fields. JSON has no infinity, so the freeness of a draining instance
is null; its state says that it is draining.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from controller.api.settings import MAX_REASON_CHARS

SCHEMA_VERSION = 1

Revision = Annotated[int | None, Field(ge=0)]
"""The call fails if the spec has a different revision by now. None: any revision will do."""
SettingValue = int | float | str | bool | None
"""None: the setting has no value, such as a time limit that is not set."""
Reason = Annotated[str, Field(max_length=MAX_REASON_CHARS)]


class WireModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class AnswerModel(WireModel):
    """A whole answer of the control API: the part that answers of all schemas share."""

    schema_version: int = SCHEMA_VERSION


class OrderModel(WireModel):
    """The body of a call that acts. Unknown fields are refused, so that a misspelt field does not
    silently become a default. Values of another type are refused too: `"3"` is no number, and `1`
    is not true."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, strict=True)


class ErrorBody(WireModel):
    """The body of every answer that is not 2xx. `hint` is the next command to try."""

    code: str
    message: str
    hint: str = ""
