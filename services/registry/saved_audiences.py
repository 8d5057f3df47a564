"""Changes of the saved audiences of an app, checked, and their descriptions for the audit."""

import msgspec

from protos.registry.v1.apps_pb2 import SavedAudience
from protos.registry.v1.registry_pb2 import RemoveAudienceRequest, SaveAudienceRequest
from services.domain.apps import AppDirectory
from services.domain.text import checked_text
from services.errors import Code, ConflictError, InputError, NotFoundError

MAX_AUDIENCES = 200
"""Upper bound of the saved audiences of an app."""

MAX_BYTES = 60_000
"""Upper bound of the definition of one."""


def saved(apps: AppDirectory, request: SaveAudienceRequest, now_ms: int) -> SavedAudience:
    """Return the audience that a request makes or changes.

    InputError: the name or the definition is wrong, or the app has too many. ConflictError: it must be new and is not.
    """
    name = checked_text("name", request.name)
    known = apps.audience(request.appkey, name)
    if known and request.must_be_new:
        raise ConflictError(Code.AUDIENCE_EXISTS, appkey=request.appkey, name=name)
    if not known and len(apps.audiences(request.appkey)) >= MAX_AUDIENCES:
        raise InputError(Code.TOO_MANY_AUDIENCES, most=MAX_AUDIENCES)
    if len(request.send_to_json.encode()) > MAX_BYTES or not _is_object(request.send_to_json):
        raise InputError(f"send_to_json must be a JSON object of at most {MAX_BYTES:,} bytes")
    return SavedAudience(
        appkey=request.appkey,
        name=name,
        send_to_json=request.send_to_json,
        owner=request.origin.actor,
        created_ms=known.created_ms if known else now_ms,
        changed_ms=now_ms,
    )


def removed(apps: AppDirectory, request: RemoveAudienceRequest, now_ms: int) -> SavedAudience:
    """Return the record that removes an audience. NotFoundError: the app has none with this name."""
    if apps.audience(request.appkey, request.name) is None:
        raise NotFoundError(Code.NO_SUCH_AUDIENCE, appkey=request.appkey, name=request.name)
    return SavedAudience(appkey=request.appkey, name=request.name, owner=request.origin.actor, changed_ms=now_ms)


def _is_object(text: str) -> bool:
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except msgspec.DecodeError:
        return False
