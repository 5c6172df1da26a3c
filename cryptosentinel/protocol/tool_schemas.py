"""Tool schemas as models read them: short, without references, with the coins of the decision by name.

`tool_calls.tool_schema` gives all that pydantic knows, which is what a grammar needs. Much of it is noise to a reader
and is charged by the token: titles, defaults, unions with null, one definition for each kind of question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Schema = dict[str, Any]
COIN, COINS = "symbol", "symbols"  # the arguments that name a coin and several, in every tool
EACH_ANSWER = "answers"  # the argument with an answer about each coin
_ONE_A_COIN = ("positions", EACH_ANSWER, COINS)  # lists that name no coin twice
_NOISE = (
    "title", "default", "additionalProperties", "discriminator", "$defs", "maxLength", "minItems", "maxItems",
)  # fmt: skip
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def with_coins(tool: Mapping[str, Any], coins: Sequence[str]) -> Schema:
    """A tool in the form of OpenAI's chat completions whose arguments called `symbol` and `symbols` may only be of
    `coins`."""
    function = tool["function"]
    return {**tool, "function": {**function, "parameters": _with_coins(function["parameters"], list(coins))}}


def with_each_coin(tool: Mapping[str, Any], coins: Sequence[str]) -> Schema:
    """The same tool with exactly one answer about each of `coins`, in their order, if it has a list of such answers:
    for a grammar, which cannot see whether a coin is named twice."""
    function = tool["function"]
    parameters = function["parameters"]
    if EACH_ANSWER not in parameters["properties"]:
        return dict(tool)
    items = parameters["properties"][EACH_ANSWER]["items"]
    one = parameters["$defs"][items["$ref"].rpartition("/")[2]] if "$ref" in items else items
    of_coins = [{**one, "properties": {**one["properties"], COIN: {"const": coin}}} for coin in coins]
    answers = {"type": "array", "prefixItems": of_coins, "items": False, "minItems": len(coins), "maxItems": len(coins)}
    properties = {**parameters["properties"], EACH_ANSWER: answers}
    return {**tool, "function": {**function, "parameters": {**parameters, "properties": properties}}}


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
    if isinstance(properties, Mapping):
        for name in _ONE_A_COIN:
            if name in properties and properties[name].get("type") == "array":
                several = {**properties[name], "maxItems": len(coins)}
                if name == COINS:
                    several["items"] = {"type": "string", "enum": coins}
                changed["properties"] = {**changed["properties"], name: several}
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
