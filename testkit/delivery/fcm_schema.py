"""Google's own schema of FCM requests, from the package google-api-python-client, as a strict judge of requests."""

import functools
import json
import re
from importlib.resources import files
from typing import Any

import jsonschema_rs

MAX_TTL_S = 28 * 86_400
_RESERVED = re.compile(r"from|message_type|google\..*|gcm\..*")
_DURATION = re.compile(r"([0-9]{1,9})(?:\.[0-9]{1,9})?s")
_TARGETS = ("token", "fid", "topic", "condition")


def problems(body: bytes) -> list[str]:
    """Return what is wrong with a body of `messages:send`; by the schema, and by four rules that only its text has."""
    request = json.loads(body)
    found = [f"{'/'.join(map(str, error.instance_path))}: {error.message}" for error in _schema().iter_errors(request)]
    message = request.get("message", {})
    if len([name for name in _TARGETS if name in message]) != 1:
        found.append("message: exactly one of token, fid, topic and condition")
    if "android" in message and "androidV2" in message:
        found.append("message: android and androidV2")
    found += [f"message/data: {name} is reserved" for name in message.get("data", {}) if _RESERVED.fullmatch(name)]
    ttl = message.get("android", {}).get("ttl")
    if isinstance(ttl, str) and (not (match := _DURATION.fullmatch(ttl)) or int(match[1]) > MAX_TTL_S):
        found.append(f"message/android/ttl: {ttl}")
    return found


@functools.cache
def _schema() -> jsonschema_rs.Draft202012Validator:
    documents = files("googleapiclient").joinpath("discovery_cache/documents/fcm.v1.json")
    schemas = json.loads(documents.read_text())["schemas"]
    definitions = {name: _strict(schema) for name, schema in schemas.items()}
    return jsonschema_rs.Draft202012Validator({"$ref": "#/$defs/SendMessageRequest", "$defs": definitions})


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of Google's discovery format as JSON Schema in which nothing else than it names is allowed."""
    if "$ref" in schema:
        return {"$ref": f"#/$defs/{schema['$ref']}"}
    made: dict[str, Any] = {name: schema[name] for name in ("type", "enum") if name in schema}
    if made.get("type") == "any":
        del made["type"]
    if "items" in schema:
        made["items"] = _strict(schema["items"])
    if schema.get("type") == "object":
        made["properties"] = {name: _strict(each) for name, each in schema.get("properties", {}).items()}
        free = schema.get("additionalProperties")
        made["additionalProperties"] = _strict(free) if free else False
    return made
