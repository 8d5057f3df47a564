"""The v2 door's document."""

import functools

from edge.openapi import device, v2_calls, v2_push
from edge.openapi.document import DoorDocument, openapi
from edge.openapi.schema import Json


@functools.cache
def document() -> Json:
    return openapi(
        DoorDocument(
            title="Carillon v2",
            text="One interface for Android and iOS.",
            port=8300,
            operations=[v2_push.OPERATION, *v2_calls.OPERATIONS, device.OPERATION],
            parts=(*v2_push.PARTS, *v2_calls.PARTS),
            texts={**v2_push.TEXTS, **v2_calls.TEXTS, **device.TEXTS},
        )
    )
