"""Signs requests with code that shares nothing with the service's, as an app server's own code would."""

import hashlib
import hmac
import json
from typing import Any

_encode = json.JSONEncoder(ensure_ascii=False).encode


class _Written(float):
    """A number that is written as it was read."""

    def __new__(cls, text: str) -> "_Written":
        made = super().__new__(cls, "0")
        made.text = text
        return made

    text: str

    def __repr__(self) -> str:
        return self.text


def reference_text(raw: bytes) -> str:
    """Return the canonical text, made by a small recursive writer over Python's JSON reader."""
    value = json.loads(raw, parse_int=_Written, parse_float=_Written)
    value.pop("sign", None)
    return _written(value)


def _written(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{_written(key)}:{_written(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, _Written):
        return value.text
    return _encode(value)


def reference_sign(raw: bytes, *secrets: str) -> str:
    return hashlib.md5(reference_text(raw).encode() + "".join(secrets).encode()).hexdigest()


def signed(body: dict[str, Any], *secrets: str) -> bytes:
    """Return the body with its sign, as bytes to send."""
    raw = json.dumps(body, ensure_ascii=False).encode()
    return json.dumps({**body, "sign": reference_sign(raw, *secrets)}, ensure_ascii=False).encode()


def replay_safe(method: str, path: str, body: bytes, time_s: int, nonce: str, *secrets: str) -> dict[str, str]:
    """Return the headers of a replay-safe signature of this request."""
    lines = [method, path, str(time_s), nonce, hashlib.sha256(body).hexdigest()]
    signature = hmac.new("".join(secrets).encode(), "\n".join(lines).encode(), "sha256").hexdigest()
    return {"Carillon-Time": str(time_s), "Carillon-Nonce": nonce, "Carillon-Signature": signature}
