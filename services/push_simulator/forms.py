"""Bodies that are forms (application/x-www-form-urlencoded)."""

from collections.abc import Mapping
from urllib.parse import parse_qsl

_FORM_TYPE = "application/x-www-form-urlencoded"


def read_form(headers: Mapping[str, str], body: bytes) -> dict[str, str]:
    """Return the fields of a form in UTF-8. ValueError: the body is none, or names a field twice."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM_TYPE:
        raise ValueError("the content type is not that of a form")
    pairs = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=True, errors="strict")
    form = dict(pairs)
    if len(form) != len(pairs):
        raise ValueError("a field is there twice")
    return form
