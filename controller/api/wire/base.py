"""What all wire models of the control API have in common.

Compatibility: within one `schema_version` fields are only added, never renamed, retyped or
removed; readers ignore fields that they do not know. Units are in the names. JSON has no
infinity: a draining instance's freeness is null beside its state.
"""

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1


class WireModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")
