"""Shortens a message to the size that a push service takes.

No message is refused for its length; the frame names the fields that were cut.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator

from msgspec import UNSET
from msgspec.structs import replace

from services.domain.device_protocol.pushes import PushClick, PushFields

_SHOWN = 100
"""Characters of a content that are left before other fields are left out for it."""

_MAX_TITLE = 100
_ELLIPSIS = "…"
_OPEN_APP = PushClick(1)

Fits = Callable[[PushFields], bool]
"""Whether a service takes these fields. Shorter ones always fit if longer ones do."""


def shortened(whole: PushFields, fits: Fits) -> PushFields:
    """Return the fields, cut until they fit; `shortened` of the result names what was cut or left out.

    The content of a notification is cut first, while _SHOWN characters of it are left; then the extra is left out too,
    then what a click opens, and at last the title is cut. A content that only the app reads is whole or left out.
    ValueError: not even that fits.
    """
    forms = _forms_of_notification(whole, fits) if whole.is_notif else _forms_for_app(whole)
    for fields in forms:
        if fits(fields):
            return fields
    raise ValueError("a frame without content, extra and click does not fit")


def _forms_of_notification(whole: PushFields, fits: Fits) -> Iterator[PushFields]:
    fields, names = whole, tuple[str, ...]()
    for name in ("", "extra", "click", "title"):
        if name and not getattr(fields, name):
            continue
        match name:
            case "extra":
                fields = replace(fields, extra=UNSET)
            case "click":
                fields = replace(fields, click=_OPEN_APP)
            case "title":
                fields = replace(fields, title=_cut(whole.title or "", _MAX_TITLE))
        names += (name,) if name else ()
        fields = replace(fields, shortened=[*names]) if names else fields
        yield fields
        yield _with_fitting_content(fields, [*names, "content"], fits)


def _with_fitting_content(fields: PushFields, names: list[str], fits: Fits) -> PushFields:
    """Cut the content to the most characters that fit, but not below _SHOWN."""

    def cut(count: int) -> PushFields:
        return replace(fields, content=_cut(fields.content, count), shortened=names)

    count = bisect_left(range(len(fields.content)), True, key=lambda count: not fits(cut(count))) - 1
    return cut(max(count, min(_SHOWN, len(fields.content))))


def _forms_for_app(whole: PushFields) -> Iterator[PushFields]:
    yield whole
    yield replace(whole, extra=UNSET, shortened=["extra"])
    yield replace(whole, content="", shortened=["content"])
    yield replace(whole, content="", extra=UNSET, shortened=["content", "extra"])


def _cut(text: str, count: int) -> str:
    """Return at most `count` characters, the last of which is an ellipsis if any was left out."""
    return text if len(text) <= count else text[: max(count - 1, 0)] + _ELLIPSIS
