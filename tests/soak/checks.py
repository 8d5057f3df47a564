"""Checks that compare the ledger of the clients with the event log. A violation names the messages concerned."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from protos.push.v1.push_pb2 import SendPush
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.devices_pb2 import Device
from tests.soak.history import DeviceNumber, History, LoggedPush
from tests.soak.ledger import (
    LONG_S,
    Change,
    Frame,
    Ledger,
    Outcome,
    Push,
    Reachability,
    Shown,
    State,
    certain_state,
)


class Violation(NamedTuple):
    """A broken rule. `msgids`: the messages whose timelines explain it."""

    rule: str
    text: str
    msgids: tuple[int, ...] = ()


class Client(NamedTuple):
    """The history of a device as the device itself has noted it.

    `shown`: by message id, in the order of showing.
    `is_steady`: it never acts by itself, and stays connected as long as the service lets it.
    """

    name: str
    history: Sequence[Change]
    shown: Mapping[int, Shown]
    frames: Sequence[Frame] = ()
    reachable: Sequence[Reachability] = ()
    is_steady: bool = False


class Observations(NamedTuple):
    """The data that the checks compare: ledger, event log, and `clients` by appkey and token."""

    ledger: Ledger
    history: History
    clients: Mapping[tuple[str, str], Client]

    def client(self, appkey: str, device_number: DeviceNumber) -> Client | None:
        """Return the client; None when the device never received its registration, or when APNs rejects its token."""
        device = self.history.devices.get((appkey, device_number))
        return None if device is None else self.clients.get((appkey, device.token))

    def device_numbers(self) -> dict[tuple[str, str], DeviceNumber]:
        return {
            (appkey, device.token): device_number for (appkey, device_number), device in self.history.devices.items()
        }

    def pushes(self) -> Iterator[tuple[Push, str, LoggedPush]]:
        """Yield each push that was answered with 0 and is in the log, for each of its apps."""
        for push in self.ledger.pushes:
            for appkey, msgid in push.ids.items():
                if msgid in self.history.sent:
                    yield push, appkey, self.history.sent[msgid]

    def must_be_shown(self, msgid: int) -> bool:
        """Return whether the push lives long enough and no cancel was requested."""
        return self.history.sent[msgid].send.period_s >= LONG_S and msgid not in self.history.cancels


def violations(observed: Observations) -> list[Violation]:
    """Return the violations of all rules."""
    own = [Violation("error", fault) for fault in (*observed.ledger.errors, *observed.history.errors)]
    rules = (commands, shown, order, audiences, cancels, repeats)
    return own + [violation for rule in rules for violation in rule(observed)]


def commands(observed: Observations) -> Iterator[Violation]:
    """Check that push-commands has accepted pushes once, refused ones never, those without answer at most once."""
    found: dict[tuple[str, str], list[int]] = defaultdict(list)
    for msgid, sent in observed.history.sent.items():
        if not sent.send.message.ios.sealed_possession_code:  # pushes of the edge itself, to a device without its key
            found[sent.send.appkey, content_of(sent.send)].append(msgid)
    for push in observed.ledger.pushes:
        for appkey in push.appkeys:
            msgids = found.pop((appkey, push.content), [])
            if not msgids and observed.ledger.may_expire_unsent(push):
                continue
            if msgids not in _allowed(push, appkey, msgids) and not _is_under_way(observed, push, msgids):
                text = f"{push.kind}, {push.outcome.value} with {push.ids.get(appkey)}, is in the log as {msgids}"
                yield Violation("commands", text, (*msgids, *push.ids.values()))
    for (appkey, content), msgids in found.items():
        if appkey in observed.ledger.apart:
            continue
        yield Violation("commands", f"no client sent {content!r}", tuple(msgids))


def _is_under_way(observed: Observations, push: Push, msgids: Sequence[int]) -> bool:
    """Return whether the first request was not in the log yet when its repetition was refused."""
    is_late = [observed.history.tasks_ms.get(msgid, 0) > push.answered_ms for msgid in msgids]
    return push.outcome is Outcome.REFUSED and push.is_repeated and is_late == [True]


def _allowed(push: Push, appkey: str, msgids: list[int]) -> list[list[int]]:
    if push.outcome is Outcome.UNKNOWN:
        return [[], msgids[:1]]
    if push.outcome is Outcome.REFUSED or appkey not in push.ids:
        return [[]]
    once = [push.ids[appkey]]
    if not push.is_timed or push.cancel in (None, Outcome.REFUSED):
        return [once]
    return [[]] if push.cancel is Outcome.ACCEPTED else [[], once]


def shown(observed: Observations) -> Iterator[Violation]:
    """Check that only the audience has shown each message, and all of it where the push lived long uncancelled."""
    device_numbers = observed.device_numbers()
    meant: set[tuple[tuple[str, str], int]] = set()
    for first, sent in observed.history.sent.items():
        appkey = sent.send.appkey
        for msgid, device_number in observed.history.audience(first):
            client = observed.client(appkey, device_number)
            if client is None:
                continue
            meant.add(((appkey, observed.history.devices[appkey, device_number].token), msgid))
            dropped = observed.history.outcome("dropped", msgid, device_number) or (
                observed.history.was_claimed(msgid, device_number)
                and observed.history.outcome("failed", msgid, device_number)  # it is unknown whether a channel shows it
            )
            if msgid not in client.shown and observed.must_be_shown(first) and not dropped:
                yield Violation("shown", f"{client.name} has not shown {content_of(sent.send)!r}", (msgid,))
    for who, client in observed.clients.items():
        for one in client.shown.values():
            if (who, one.msgid) not in meant:
                text = f"{client.name} at {device_numbers.get(who)} showed a message that is not for it"
                yield Violation("shown", text, (one.msgid,))
    yield from _contents(observed)


def _contents(observed: Observations) -> Iterator[Violation]:
    """Check that devices have shown the content that was sent."""
    ids = {id_: sent for sent in observed.history.sent.values() for id_ in _ids(sent.send)}
    for client in observed.clients.values():
        for one in client.shown.values():
            if one.msgid in ids and one.content != content_of(ids[one.msgid].send):
                text = f"{client.name} showed {one.content!r}, which is not what was sent"
                yield Violation("shown", text, (one.msgid,))


def order(observed: Observations) -> Iterator[Violation]:
    """Check that devices have shown messages in the order of the log, but for rate-limited and held up pushes.

    A push whose time to live was over when a later one was shown may follow it: its sender's clock was set back since.
    So may one that a channel has claimed.
    """
    device_numbers = observed.device_numbers()
    ids = {id_: sent for sent in observed.history.sent.values() for id_ in _ids(sent.send)}
    for who, client in observed.clients.items():
        in_order = [
            (ids[msgid].order, msgid)
            for msgid in client.shown
            if msgid in ids and not ids[msgid].send.qps and ids[msgid].send.platform != PLATFORM_IOS
        ]
        for earlier, later in pairwise(in_order):
            first, passed = ids[earlier[1]].send.msgid, ids[later[1]].send.msgid
            partition = device_numbers[who].partition if who in device_numbers else 0
            if later >= earlier or client.shown[earlier[1]].time_ms > ids[later[1]].expires_ms:
                continue
            if who in device_numbers and any(
                observed.history.was_claimed(each[1], device_numbers[who]) for each in (earlier, later)
            ):
                continue
            if not observed.history.was_passed(passed, first, partition):
                text = f"{client.name} showed {earlier[1]} before {later[1]}"
                yield Violation("order", text, (earlier[1], later[1]))


def audiences(observed: Observations) -> Iterator[Violation]:
    """Check that audiences have the devices that matched all the time, and none that never matched."""
    device_numbers = observed.device_numbers()
    for push, appkey, sent in observed.pushes():
        inside = {device_number for _, device_number in observed.history.audience(sent.send.msgid)}
        started_ms = {} if sent.is_listed else observed.history.started_ms
        until_ms = started_ms.get(sent.send.msgid, sent.time_ms) + observed.history.clock_error_ms
        certain = 0
        for (app, token), client in observed.clients.items():
            if app != appkey:
                continue
            device_number = device_numbers.get((app, token))
            if device_number is not None and _may_be_without_audience(observed, sent.send.msgid, device_number):
                continue
            expected = _expected(push, client.history, until_ms)
            certain += expected is True
            is_inside = device_number in inside
            if expected is False and is_inside:
                yield Violation("audience", f"{client.name} is in the audience of {push.kind}", (sent.send.msgid,))
            if expected is True and not is_inside and not push.most_active_only:
                yield Violation(
                    "audience", f"{client.name} is missing in the audience of {push.kind}", (sent.send.msgid,)
                )
        if push.most_active_only and not min(certain, 1) <= len(inside) <= 1:
            yield Violation("audience", f"{push.kind} goes to {len(inside)} devices", (sent.send.msgid,))


def _may_be_without_audience(observed: Observations, msgid: int, device_number: DeviceNumber) -> bool:
    """Return whether the push, cancelled or with a short time to live, ended before it started for the device."""
    has_ended = observed.history.is_ended_unstarted(msgid, device_number.partition)
    return has_ended and not observed.must_be_shown(msgid)


def _expected(push: Push, history: Sequence[Change], until_ms: int) -> bool | None:
    """Return whether the device must be in the audience; None where its state was changing then."""
    if not history or history[0].asked_ms > until_ms:
        return False
    state = certain_state(list(history), push.begun_ms, until_ms)
    return None if state is None else push.matches(state)


def cancels(observed: Observations) -> Iterator[Violation]:
    """Check that no cancelled push was sent over a connection opened after the cancel was answered."""
    for push, _, sent in observed.pushes():
        msgid = sent.send.msgid
        if push.cancel is not Outcome.ACCEPTED or push.is_timed:
            continue
        if msgid not in observed.history.cancels:
            yield Violation("cancel", f"the cancel of {push.kind} was answered with 0 and is not in the log", (msgid,))
        for client in observed.clients.values():
            if any(frame.msgid == msgid and frame.connected_ms > push.cancelled_ms for frame in client.frames):
                text = f"{client.name} connected after the cancel, and the message was sent to it"
                yield Violation("cancel", text, (msgid,))


def repeats(observed: Observations) -> Iterator[Violation]:
    """Check that no message was sent twice over one connection."""
    for client in observed.clients.values():
        sent = Counter((frame.msgid, frame.connection) for frame in client.frames)
        for msgid, connection in sorted(each for each, count in sent.items() if count > 1):
            text = f"{client.name} was sent the message again over connection {connection}"
            yield Violation("repeats", text, (msgid,))


def differs(state: State, answer: Mapping[str, Any], device: Device | None) -> str:
    """Return the difference between a device's own state, the service's answer and the log; "" if there is none."""
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
