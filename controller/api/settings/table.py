"""The base class of the tables of settings, and functions that read a table's types and schema.

A table is a class. A table that the core reads is a class of `controller.core.settings`; any other
is a `Table` of this package.
"""

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Annotated, Any, TypeVar, cast, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema

from controller.core import settings as core

Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = core.Seconds


class Table(BaseModel):
    model_config = cast(ConfigDict, core.Table.__pydantic_config__ | {"frozen": True})


class _Read:
    """Lets pydantic read a table of the core from a dict. Otherwise, in strict mode, pydantic would
    accept nothing but an instance of the dataclass."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        cast(dict[str, Any], handler.resolve_ref_schema(schema))["strict"] = False
        return schema


T = TypeVar("T", bound=core.Table)
OfCore = Annotated[T, _Read]
"""A field of `Settings` that is a table of the core."""


def is_table(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Table | core.Table)


@cache
def kinds(table: Any) -> Mapping[str, Any]:
    """The type of each key of a table, with its bounds."""
    hints = get_type_hints(table, include_extras=True)
    if issubclass(table, BaseModel):
        return {name: hints[name] for name in table.model_fields}
    return {each.name: hints[each.name] for each in fields(table)}


@cache
def schemas(table: type) -> Mapping[str, Mapping[str, Any]]:
    """The JSON schema of each key of a table: the key's meaning, bounds and default."""
    found: dict[str, Any] = TypeAdapter(table).json_schema()["properties"]
    return found


def may_be_none(table: type, key: str) -> bool:
    return type(None) in get_args(get_type_hints(table)[key])
