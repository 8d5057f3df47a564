"""Compares what the clients wrote down with what the log says. Every finding names the messages it is about."""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from protos.push.v1.push_pb2 import SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.devices_pb2 import Device
from tests.soak.history import History, Place, Sent
from tests.soak.ledger import Change, Frame, Ledger, Outcome, Push, Shown, State, certain_state
from tests.soak.pushes import LONG_S


class Finding(NamedTuple):
    """Something that must not be. `msgids`: whose timelines explain it."""

    rule: str
    text: str
    msgids: tuple[int, ...] = ()


class Client(NamedTuple):
    """A device as it saw things. `shown`: by message id, in order."""

    name: str
    history: Sequence[Change]
    shown: Mapping[int, Shown]
    frames: Sequence[Frame] = ()


class Case(NamedTuple):
    """`clients` by appkey and token."""

    ledger: Ledger
    history: History
    clients: Mapping[tuple[str, str], Client]

    def client(self, appkey: str, place: Place) -> Client | None:
        """None for a device that was registered and never heard of it, and for one that Apple calls dead."""
        device = self.history.devices.get((appkey, place))
        return None if device is None else self.clients.get((appkey, device.token))

    def places(self) -> dict[tuple[str, str], Place]:
        return {(appkey, device.token): place for (appkey, place), device in self.history.devices.items()}

    def pushes(self) -> Iterator[tuple[Push, str, Sent]]:
        """Each push that was answered with 0 and is in the log, by app."""
        for push in self.ledger.pushes:
            for appkey, msgid in push.ids.items():
                if msgid in self.history.sent:
                    yield push, appkey, self.history.sent[msgid]

    def must_be_shown(self, msgid: int) -> bool:
        """Long enough to live, and nobody asked to cancel it."""
        return self.history.sent[msgid].send.period_s >= LONG_S and msgid not in self.history.cancels


def findings(case: Case) -> list[Finding]:
    """Everything that the log and the ledger show to be wrong."""
    own = [Finding("by itself", fault) for fault in (*case.ledger.faults, *case.history.faults)]
    rules = (commands, shown, order, audiences, cancels, repeats)
    return own + [finding for rule in rules for finding in rule(case)]


def commands(case: Case) -> Iterator[Finding]:
    """An accepted push is in push-commands exactly once, a refused one never, any other at most once."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for msgid, sent in case.history.sent.items():
        found[sent.send.appkey, content_of(sent.send)].append(msgid)
    for push in case.ledger.pushes:
        for appkey in push.appkeys:
            msgids = found.pop((appkey, push.content), [])
            if msgids not in _allowed(push, appkey, msgids):
                text = f"{push.kind}, {push.outcome.value} with {push.ids.get(appkey)}, is in the log as {msgids}"
                yield Finding("commands", text, (*msgids, *push.ids.values()))
    for (_, content), msgids in found.items():
        yield Finding("commands", f"nobody sent {content!r}", tuple(msgids))


def _allowed(push: Push, appkey: str, msgids: list[int]) -> list[list[int]]:
    if push.outcome is Outcome.UNKNOWN:
        return [[], msgids[:1]]
    if push.outcome is Outcome.REFUSED or appkey not in push.ids:
        return [[]]
    once = [push.ids[appkey]]
    if not push.is_timed or push.cancel in (None, Outcome.REFUSED):
        return [once]
    return [[]] if push.cancel is Outcome.ACCEPTED else [[], once]


def shown(case: Case) -> Iterator[Finding]:
    """The audience shows a message once, nobody else does, and what lives long and was not cancelled all of them do."""
    places = case.places()
    meant: set[tuple[tuple[str, str], int]] = set()
    for first, sent in case.history.sent.items():
        appkey = sent.send.appkey
        for msgid, place in case.history.audience(first):
            client = case.client(appkey, place)
            if client is None:
                continue
            meant.add(((appkey, case.history.devices[appkey, place].token), msgid))
            dropped = case.history.outcome("dropped", msgid, place)
            if msgid not in client.shown and case.must_be_shown(first) and not dropped:
                yield Finding("shown", f"{client.name} has not shown {content_of(sent.send)!r}", (msgid,))
    for who, client in case.clients.items():
        for one in client.shown.values():
            if (who, one.msgid) not in meant:
                yield Finding("shown", f"{client.name} at {places.get(who)} showed what was not for it", (one.msgid,))
    yield from _contents(case)


def _contents(case: Case) -> Iterator[Finding]:
    """What is shown is what was sent."""
    ids = {id_: sent for sent in case.history.sent.values() for id_ in _ids(sent.send)}
    for client in case.clients.values():
        for one in client.shown.values():
            if one.msgid in ids and one.content != content_of(ids[one.msgid].send):
                yield Finding("shown", f"{client.name} showed {one.content!r} in place of it", (one.msgid,))


def order(case: Case) -> Iterator[Finding]:
    """A device shows messages in the order of the log, but for those that have a speed."""
    ids = {id_: sent for sent in case.history.sent.values() for id_ in _ids(sent.send)}
    for client in case.clients.values():
        in_order = [
            (ids[msgid].order, msgid)
            for msgid in client.shown
            if msgid in ids and not ids[msgid].send.qps and ids[msgid].send.platform != PLATFORM_IOS
        ]
        for earlier, later in pairwise(in_order):
            if later < earlier:
                text = f"{client.name} showed {earlier[1]} before {later[1]}"
                yield Finding("order", text, (earlier[1], later[1]))


def audiences(case: Case) -> Iterator[Finding]:
    """Who certainly matched all the time is in the audience, who certainly did not is not."""
    places = case.places()
    for push, appkey, sent in case.pushes():
        inside = {place for _, place in case.history.audience(sent.send.msgid)}
        until_ms = case.history.started_ms.get(sent.send.msgid, sent.time_ms) if not sent.is_listed else sent.time_ms
        certain = 0
        for (app, token), client in case.clients.items():
            if app != appkey:
                continue
            expected = _expected(push, client.history, until_ms)
            certain += expected is True
            is_inside = places.get((app, token)) in inside
            if expected is False and is_inside:
                yield Finding("audience", f"{client.name} is in the audience of {push.kind}", (sent.send.msgid,))
            if expected is True and not is_inside and not push.most_active_only:
                yield Finding("audience", f"{client.name} is missed by {push.kind}", (sent.send.msgid,))
        if push.most_active_only and not min(certain, 1) <= len(inside) <= 1:
            yield Finding("audience", f"{push.kind} goes to {len(inside)} devices", (sent.send.msgid,))


def _expected(push: Push, history: Sequence[Change], until_ms: int) -> bool | None:
    """Whether the push is for the device; None where the client cannot know."""
    if not history or history[0].asked_ms > until_ms:
        return False
    state = certain_state(list(history), push.begun_ms, until_ms)
    return None if state is None else push.matches(state)


def cancels(case: Case) -> Iterator[Finding]:
    """What was cancelled reaches nobody over a connection that was made afterwards."""
    for push, _, sent in case.pushes():
        msgid = sent.send.msgid
        if push.cancel is not Outcome.ACCEPTED or push.is_timed:
            continue
        if msgid not in case.history.cancels:
            yield Finding("cancel", f"the cancel of {push.kind} was answered with 0 and is not in the log", (msgid,))
        for client in case.clients.values():
            if any(frame.msgid == msgid and frame.connected_ms > push.cancelled_ms for frame in client.frames):
                yield Finding("cancel", f"{client.name} connected after the cancel and was sent it", (msgid,))


def repeats(case: Case) -> Iterator[Finding]:
    """While nothing is killed or stopped, one connection is sent a message once."""
    for client in case.clients.values():
        calm = [(frame.msgid, frame.connection) for frame in client.frames if frame.is_calm]
        for msgid, connection in sorted({each for each in calm if calm.count(each) > 1}):
            yield Finding("repeats", f"{client.name} was sent it again over connection {connection}", (msgid,))


def differs(state: State, answer: Mapping[str, Any], device: Device | None) -> str:
    """How a device differs from what the service answers and what the log holds; "" when it does not."""
    answered = State(
        state.token,
        answer["alias"],
        frozenset(answer["tags"]),
        frozenset(answer["stags"]),
        answer["device"].get("channel", ""),
    )
    if answered != state:
        return f"is {state}, the service says {answered}"
    if device is None:
        return f"is {state}, the log does not know it"
    alias = device.alias if device.HasField("alias") else None
    stags = frozenset(device.stags)
    logged = State(device.token, alias, frozenset(device.tags), stags, device.attributes.channel)
    return "" if logged == state else f"is {state}, the log says {logged}"


def content_of(send: SendPush) -> str:
    text = send.message.content
    return str(json.loads(text)["body"]) if send.message.ios.content_is_json else text


def _ids(send: SendPush) -> range:
    return range(send.msgid, send.msgid + max(1, send.id_count))
