"""Tool schemas as models read them: short, without references, with the coins of the decision by name.

`tool_calls.tool_schema` gives all that pydantic knows, which is what a grammar needs. Much of it is noise to a reader
and is charged by the token: titles, defaults, unions with null, one definition for each kind of question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]
COIN = "symbol"  # the argument that names a coin, in every tool
POSITIONS = "positions"  # the argument that is a list of positions, which names no coin twice
# Of a schema, for a grammar. A list: schemas of which each is used at most once, in this order. An object: the kinds of
# it, where not every value of one argument goes with every value of another; see `kinds_of`.
IN_TURN, KINDS = "x-in-turn", "x-kinds"
_NOISE = (
    "title", "default", "additionalProperties", "discriminator", "$defs", "maxLength", "minItems", "maxItems", KINDS,
)  # fmt: skip
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def with_coins(tool: Mapping[str, Any], coins: Sequence[str]) -> Schema:
    """A tool in the form of OpenAI's chat completions whose arguments called `symbol` may only be of `coins`."""
    function = tool["function"]
    return {**tool, "function": {**function, "parameters": _with_coins(function["parameters"], list(coins))}}


def with_each_coin(tool: Mapping[str, Any], coins: Sequence[str]) -> Schema:
    """The same tool as a grammar needs it, which cannot see whether something is named twice: a list of positions has
    each of `coins` at most once, in their order (`IN_TURN`), and a flat one is without an exposure."""
    function = tool["function"]
    parameters = function["parameters"]
    properties = {
        name: _once(value, parameters.get("$defs", {}), coins) if name == POSITIONS else value
        for name, value in parameters["properties"].items()
    }
    return {**tool, "function": {**function, "parameters": {**parameters, "properties": properties}}}


def kinds_of(schema: Mapping[str, Any]) -> list[Schema]:
    """An object by its kinds (`KINDS`), each without that key; one that has none is its only kind.

    A kind says of some arguments what they are: a schema in the place of theirs; `{}` for their own, without null and
    required; None where they are left out.
    """
    rest = {key: value for key, value in schema.items() if key != KINDS}
    found = []
    for kind in schema.get(KINDS, ({},)):
        properties: Schema = {}
        for name, own in rest.get("properties", {}).items():
            if name not in kind:
                properties[name] = own
            elif kind[name] is not None:
                properties[name] = kind[name] or _not_null(own)
        required = [name for name in properties if name in rest.get("required", ()) or kind.get(name) == {}]
        found.append({**rest, "properties": properties, "required": required} if kind else rest)
    return found


def _once(several: Mapping[str, Any], definitions: Mapping[str, Any], coins: Sequence[str]) -> Schema:
    items = several["items"]
    one = definitions[items["$ref"].rpartition("/")[2]] if "$ref" in items else items
    of_coins = [{**_flat(one), "properties": {**one["properties"], COIN: {"const": coin}}} for coin in coins]
    return {"type": "array", IN_TURN: of_coins, "minItems": several.get("minItems", 0)}


def _flat(position: Mapping[str, Any]) -> Schema:
    """A position in kinds, where it has a side that may be flat: with an exposure, flat without one, and kept with
    neither that nor a stop or target."""
    sides = position["properties"].get("side", {}).get("enum", ())
    if "flat" not in sides or "exposure" in position.get("required", ()):
        return dict(position)
    held = [side for side in sides if side not in ("flat", "keep")]
    kinds: list[Schema] = [{"side": {"enum": held}}, {"side": {"enum": ["flat"]}, "exposure": None}]
    if "keep" in sides:
        without = {name: None for name in ("exposure", "stop", "target") if name in position["properties"]}
        kinds.append({"side": {"enum": ["keep"]}, **without})
    return {**position, KINDS: kinds}


def _not_null(schema: Mapping[str, Any]) -> Schema:
    if "anyOf" not in schema:
        return dict(schema)
    return {**schema, "anyOf": [one for one in schema["anyOf"] if one.get("type") != "null"]}


def slim(tool: Mapping[str, Any]) -> Schema:
    """The same tool without what a model does not need to call it. What arguments mean and may be stays.

    References are put in their place. A choice between kinds of object becomes one object with the arguments of all;
    required are those that all require, and an argument of some kinds alone says of which.
    """
    function = tool["function"]
    parameters = function["parameters"]
    return {**tool, "function": {**function, "parameters": _slim(parameters, parameters.get("$defs", {}))}}


def _with_coins(schema: Any, coins: list[str]) -> Any:
    if isinstance(schema, list):
        return [_with_coins(part, coins) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    changed = {key: _with_coins(value, coins) for key, value in schema.items()}
    properties = changed.get("properties")
    if isinstance(properties, Mapping) and COIN in properties:
        rest = {key: value for key, value in properties[COIN].items() if key not in ("maxLength", "default")}
        changed["properties"] = {**properties, COIN: {**rest, "enum": coins}}
    if isinstance(properties, Mapping) and properties.get(POSITIONS, {}).get("type") == "array":
        several = {**properties[POSITIONS], "maxItems": len(coins)}
        changed["properties"] = {**changed["properties"], POSITIONS: several}
    return changed


def _slim(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Schema:
    if "$ref" in schema:
        return _slim(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        [kind] = [one for one in schema["anyOf"] if one.get("type") != "null"]
        rest = {key: value for key, value in schema.items() if key != "anyOf"}
        return _slim({**kind, **rest}, definitions)
    if "oneOf" in schema:
        return _merged([_slim(kind, definitions) for kind in schema["oneOf"]])
    kept = {key: value for key, value in schema.items() if key not in _NOISE}
    if "enum" in kept:  # which has the type
        kept.pop("type", None)
    if kept.get("type") == "number":  # its description says what it is; of a count the bounds are to be known
        kept = {key: value for key, value in kept.items() if key not in _BOUNDS}
    if "properties" in kept:
        kept.pop("description", None)  # of a class, for those who read the code
        kept["properties"] = {name: _slim(value, definitions) for name, value in kept["properties"].items()}
        coin = kept["properties"].get(COIN, {})
        if "enum" in coin:
            kept["properties"][COIN] = {"enum": coin["enum"]}
    if "items" in kept:
        kept["items"] = _slim(kept["items"], definitions)
    return kept


def _merged(kinds: Sequence[Schema]) -> Schema:
    """One object for several, which the constant of one argument tells apart."""
    [tag] = {name for kind in kinds for name, value in kind["properties"].items() if "const" in value}
    names = [kind["properties"][tag]["const"] for kind in kinds]
    properties: dict[str, Any] = {tag: {"type": "string", "enum": names}}
    for name in dict.fromkeys(name for kind in kinds for name in kind["properties"] if name != tag):
        having = [kind for kind in kinds if name in kind["properties"]]
        argument = dict(having[0]["properties"][name])
        if len(having) < len(kinds):
            of = ", ".join(kind["properties"][tag]["const"] for kind in having)
            argument["description"] = f"of {of}; {argument['description']}" if "description" in argument else f"of {of}"
        properties[name] = argument
    required = [name for name in properties if all(name in kind.get("required", ()) for kind in kinds)]
    return {"type": "object", "properties": properties, "required": required}
