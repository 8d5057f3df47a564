"""Checks that no push is late while nothing is broken."""

from collections.abc import Iterator, Sequence

from tests.soak.checks import Client, Observations, Violation
from tests.soak.ledger import Push, Reachability

BOUND_MS = 5_000
"""Time within which a device that is connected and awake has to show a push once it is due.

A push waits up to 1 s for an earlier one whose audience is being resolved, and a device that changed gateways 2 s. A
backlog comes in windows of 16, each of which may take as long, because one of the clients' messages in a hundred takes
1 to 3 s.
"""

_WINDOW = 16


def late(observed: Observations, calm_ms: Sequence[tuple[int, int]], slowness: int = 1) -> Iterator[Violation]:
    """Yield the pushes that were sent late after they were due, or shown late by devices that were reachable.

    `calm_ms`: the intervals in which nothing was broken. `slowness`: the factor by which BOUND_MS is extended.
    """
    bound_ms = slowness * BOUND_MS
    for push, appkey, sent in observed.pushes():
        msgid = sent.send.msgid
        due_ms = push.answered_ms + push.delay_s * 1000
        until_ms = next((ended for begun, ended in calm_ms if begun <= push.begun_ms < ended), 0)
        if due_ms + bound_ms < min(sent.time_ms, until_ms):
            yield Violation("late", f"{push.kind} was sent {sent.time_ms - due_ms} ms after it was due", (msgid,))
        if push.qps or push.cancel is not None:
            continue
        for each, number in observed.history.audience(msgid):
            client = observed.client(appkey, number)
            if client is not None and _is_late(
                client, push, each, max(sent.time_ms, push.begun_ms), until_ms, bound_ms
            ):
                yield Violation("late", f"{client.name} was reachable, but showed {push.kind} late or never", (each,))


def _is_late(client: Client, push: Push, msgid: int, sent_ms: int, until_ms: int, bound_ms: int) -> bool:
    shown = client.shown.get(msgid)
    for begun_ms, ended_ms in windows(client.reachable):
        before = sum(begun_ms <= other.time_ms < shown.time_ms for other in client.shown.values()) if shown else 0
        deadline_ms = max(begun_ms, sent_ms) + bound_ms * (1 + before // _WINDOW * (sent_ms < begun_ms))
        if deadline_ms < min(ended_ms, until_ms, sent_ms + push.period_s * 1000):
            return shown is None or shown.time_ms > deadline_ms
    return False


def windows(reachable: Sequence[Reachability]) -> Iterator[tuple[int, int]]:
    """Yield the intervals in which a device was reachable, as begin and end."""
    begun_ms: int | None = None
    for each in reachable:
        if begun_ms is not None and not each.is_reachable:
            yield begun_ms, each.time_ms
        begun_ms = each.time_ms if each.is_reachable else None
