"""Writes the chart's values.schema.json: the values have the types of values.yaml, `config` has the keys of `Config`.

`make readme` runs it. A mapping whose keys a site chooses is empty in values.yaml, or is named in `_OPEN`.
"""

import json
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Final

from msgspec import inspect

from megatron_monitor.config import Config
from tests.conftest import loaded

_CHART: Final = Path(__file__).parents[2] / "deploy" / "helm"
FILE: Final = _CHART / "values.schema.json"
_OPEN: Final = ("resources", "labels", "annotations")
_TYPES: Final = {
    inspect.BoolType: "boolean", inspect.IntType: "integer", inspect.FloatType: "number", inspect.StrType: "string",
}  # fmt: skip
Schema = dict[str, Any]


def schema() -> str:
    """The file: one line per value, and one per key of the configuration."""
    values = _value(loaded((_CHART / "values.yaml").read_text()))
    config = _config(inspect.type_info(Config))
    values["properties"] |= {"config": {"$ref": "#/definitions/config"}, "global": {"type": "object"}}
    return (
        f'{{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": false,\n'
        f'"properties": {_lines(values["properties"])},\n"definitions": {{"config": {{"type": "object", '
        f'"additionalProperties": false, "properties": {_lines(config["properties"])}}}}}}}\n'
    )


def _lines(properties: Schema) -> str:
    return "{\n" + ",\n".join(f"  {json.dumps(key)}: {json.dumps(one)}" for key, one in properties.items()) + "}"


def _value(value: Any) -> Schema:
    if isinstance(value, list):
        return {"type": ["array", "null"], "items": {"type": "object"}}
    if isinstance(value, dict):
        known = {key: {"type": ["object", "null"]} if key in _OPEN else _value(one) for key, one in value.items()}
        return _mapping(known) if known else {"type": ["object", "null"]}
    return {"type": {bool: "boolean", int: "integer", str: "string"}[type(value)]}


def _mapping(properties: Schema) -> Schema:
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties}


def _config(info: inspect.Type) -> Schema:
    extra: Schema = {}
    while isinstance(info, inspect.Metadata):
        extra |= info.extra or {}
        info = info.type
    if isinstance(info, inspect.UnionType):
        kinds = [one for one in info.types if not isinstance(one, inspect.NoneType)]
        found = _config(kinds[0]) if len(kinds) == 1 else _tagged(kinds)
        return {"anyOf": [found, {"type": "null"}]} if info.includes_none else found
    if isinstance(info, inspect.StructType):
        return _mapping({field.encode_name: _config(field.type) for field in info.fields})
    if isinstance(info, inspect.VarTupleType):
        classes = resolve_name(extra["kinds"]) if "kinds" in extra else ()
        items = _tagged([inspect.type_info(one) for one in classes]) if classes else _config(info.item_type)
        return {"type": ["array", "null"], "items": items}
    if isinstance(info, inspect.DictType):
        return {"type": ["object", "null"], "additionalProperties": _config(info.value_type)}
    if isinstance(info, inspect.LiteralType):
        return {"enum": info.values}
    if isinstance(info, inspect.FloatType | inspect.IntType) and "read" in extra:
        return {"type": ["number", "string"], "pattern": "^[0-9]"}
    return {"type": _TYPES.get(type(info), "string")}


def _tagged(kinds: list[inspect.Type]) -> Schema:
    """Classes selected by `type:`; the keys of the selected class are checked."""
    found = {
        one.tag: {**_config(one)["properties"], "type": {}} for one in kinds if isinstance(one, inspect.StructType)
    }
    return {
        "type": "object", "required": ["type"], "properties": {"type": {"enum": [*found]}},
        "allOf": [
            {"if": {"properties": {"type": {"const": tag}}},
             "then": {"additionalProperties": False, "properties": known}}
            for tag, known in found.items()
        ],
    }  # fmt: skip
