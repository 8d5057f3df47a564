"""Judges answers of the service over HTTP: wrong are 500 anywhere in an answer, and text that is not JSON."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_SHOWN_BYTES = 300


class Answer(NamedTuple):
    """The body of an answer, and the problem with it, None if there is none."""

    body: bytes = b""
    problem: str | None = None


def checked(results: Counter[str], status: int, body: bytes, method: str) -> Answer:
    """Return the answer with its problem, and count it in `results`."""
    return Answer(body, _problem(results, status, body, method))


def checked_bytes(results: Counter[str], data: bytes, method: str) -> Answer:
    """Return the answer to a call over a socket with its problem; the connection may end without one."""
    head, _, body = data.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        head, _, body = body.partition(b"\r\n\r\n")
    return checked(results, int(head.split()[1]), body, method) if head else Answer()


def repeated_problem(answers: Iterable[Answer]) -> str | None:
    """Return the problem with the answers to one request that was repeated under one idempotency key, or None."""
    accepted = {answer.body for answer in answers if b'"result":0' in answer.body}
    return f"one idempotency key, several answers: {accepted}" if len(accepted) > 1 else None


def pipeline_problem(results: Counter[str], data: bytes) -> str | None:
    """Return the problem with the answers to pipelined calls, or None; fewer answers than calls are allowed."""
    statuses = _STATUS.findall(data)
    results.update(f"pipelined HTTP {status.decode()}" for status in statuses)
    if b"500" in statuses or b'"result":500' in data:
        return f"500 among pipelined answers: {data[: 10 * _SHOWN_BYTES]!r}"
    return None


def head_problem(data: bytes) -> str | None:
    """Return the problem with the first answer to a mutated head, whose framing may be anything, or None."""
    words = data.split(maxsplit=2)
    return f"answered {data[:_SHOWN_BYTES]!r}" if len(words) > 1 and words[1] == b"500" else None


def _problem(results: Counter[str], status: int, body: bytes, method: str) -> str | None:
    if status == 500:
        return f"HTTP 500: {body[:_SHOWN_BYTES]!r}"
    if not body or method == "HEAD" or status in (400, 431):
        results[f"HTTP {status}"] += 1
        return None
    try:
        answer = json.loads(body)
    except ValueError:
        return f"the answer is no JSON: {body[:_SHOWN_BYTES]!r}"
    results[_kind(answer)] += 1
    return f"result 500: {body[:_SHOWN_BYTES]!r}" if _holds_500(answer) else None


def _kind(answer: Any) -> str:
    if not isinstance(answer, dict):
        return "other"
    return f"result {answer['result']}" if "result" in answer else f"device frame {answer.get('code', 'accepted')}"


def _holds_500(value: Any) -> bool:
    children: Any = ()
    if isinstance(value, dict):
        if value.get("result") == 500 or value.get("code") == 500:
            return True
        children = value.values()
    elif isinstance(value, list):
        children = value
    return any(_holds_500(child) for child in children)
