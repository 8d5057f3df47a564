"""A valid request for every endpoint of every interface, which tests then make invalid. Add new endpoints here."""

from typing import Any, Literal, NamedTuple

import httpx

from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from protos.registry.v1.registry_pb2 import UpdateAppRequest
from protos.registry.v1.registry_pb2_grpc import RegistryServiceStub
from testkit.apns.tokens import ios_token
from testkit.edge.role import EdgeInstallation


class ValidRequest(NamedTuple):
    """A request that is answered with result 0, at least the first time."""

    interface: Literal["v2", "android", "ios"]
    method: str
    path: str
    body: dict[str, Any]
    secrets: tuple[str, ...]

    def client(self, installation: EdgeInstallation) -> httpx.AsyncClient:
        return {"v2": installation.http, "android": installation.android, "ios": installation.ios}[self.interface]


STYLE = {
    "basic": {"content": {"android": "a", "ios": "i"}, "is_notif": {"android": 1, "ios": 0}},
    "android": {"sound": True, "unremovable": False, "title": "t", "click_action": 4, "vibrate": True, "badge": -1},
    "ios": {"sound": "s", "content-available": 1, "category": "c", "badge": 3},
}
LANDING_PAGE = {
    "picture-addr": "http://p",
    "jump-button": 1,
    "jump-seconds": 5,
    "tip-content": "t",
    "tip-url": "http://t",
}
FLOW = {"flow-mode": 1, "information": [{"title": "t", "text-abstract": "a"}, {"text-abstract": "b"}]}
OPTFILTER = {"locate": ["北京市"], "model": [{"b": ["m"]}], "activity_7": {">=": 3}, "operator_not": ["cm"]}


async def valid_requests(installation: EdgeInstallation) -> list[ValidRequest]:
    """Create two devices with the alias `alice` in an Android and an iOS app, and return the requests to them."""
    android, ios, other = (
        await installation.app(),
        await installation.app(PLATFORM_IOS),
        await installation.app(PLATFORM_IOS),
    )
    registry = RegistryServiceStub(installation.context.peers.all("registry")[0])
    await registry.UpdateApp(UpdateAppRequest(appkey=android.appkey, ack_info_enabled=True))
    one, two, three, four = (ios_token(name) for name in ("1", "2", "3", "4"))
    for app, tokens in ((android, ("t1", "t2")), (ios, (one, two))):
        for token in tokens:
            await installation.device(app, token, "alice")
    a, i, o = android.appkey, ios.appkey, other.appkey
    secret = installation.secrets
    style: dict[str, Any] = {**STYLE, "android": {**STYLE["android"], "click_param": LANDING_PAGE}}
    flow: dict[str, Any] = {**STYLE, "android": {"click_action": 6, "click_param": FLOW}}
    timed = {"period": 600, "qps": 10, "timed": 1, "send_time": "2026-12-31 23:59"}
    channel = {"route": "vendor", "importance": "high", "category": "IM"}
    later = {"sendTo": {"appkey": {"android": a}, "userScope": 1}, "msgStyle": flow, "option": timed}
    task_key = (await installation.push(later, a))["task_key"]
    msgid = (await installation.push({**later, "option": {}}, a))["id"]

    def v2(path: str, body: dict[str, Any], *appkeys: str, method: str = "POST") -> ValidRequest:
        return ValidRequest("v2", method, path, body, tuple(secret[appkey] for appkey in appkeys))

    def push(scope: int, style: dict[str, Any] = style, **fields: Any) -> ValidRequest:
        appkey = {"android": a, "ios": [i, o]}
        signers = (a,) if scope in (1, 7, 8) else (i, o) if scope == 2 else (a, i, o)
        return v2("/v2/push", {"sendTo": {"appkey": appkey, "userScope": scope, **fields}, "msgStyle": style}, *signers)

    def legacy(interface: Literal["android", "ios"], method: str, path: str, **fields: Any) -> ValidRequest:
        appkey = a if interface == "android" else i
        return ValidRequest(interface, method, path, {"appkey": appkey, **fields}, (secret[appkey],))

    both = {"android": a, "ios": [i, o]}
    tags = {a: {"t1": ["x", "é"]}, i: {two: ["y"], three: ["z"]}}
    dur = {"timeScope": 3, "from": "2026-01-01", "to": "2026-01-31"}
    notification = {"title": "t", "sound": True, "click_action": "open_url", "open_url": "http://u", "extra": "e"}
    return [
        push(0, flow),
        push(1),
        push(2),
        push(3, alias=["alice", "bob"]),
        push(4, alias="alice"),
        push(5, token={"android": ["t1", "t2", "t1"], "ios": {i: [one], o: two}}),
        push(6, tag=[[1, 2], [3]], not_tag=[4]),
        push(6, stag=[["a", "b"]], not_stag=[["c"]]),
        push(7, optfilter={"android": OPTFILTER}),
        push(8, tag=[[1]], optfilter={"android": OPTFILTER}),
        v2("/v2/push", {**later, "extra": "e"}, a),
        v2(
            "/v2/push", {**later, "option": {"timed": 2, "send_time_interval": 60, "channel": channel, "label": "a"}}, a
        ),
        v2("/v2/timedtasklist", {"appkey": both, "order": 1, "page_num": 1, "page_size": 50}, a, i, o),
        v2("/v2/timedtaskdetail", {"appkey": both, "task_key": task_key}, a, i, o),
        v2("/v2/timed", {"appkey": {"android": a}, "task_key": task_key}, a, method="DELETE"),
        v2("/v2/device", {"appkey": a, "action": "stag", "params": {"t1": ["x"], "t9": ["y"]}}, a),
        v2("/v2/device", {"appkey": [a, i], "action": "stag", "params": tags}, a, i),
        v2("/v2/device", {"appkey": [a, i], "action": "stag", "param": tags}, a, i, method="DELETE"),
        v2("/v2/deviceinfo", {"appkey": a, "action": "stag", "params": ["t1", "t9"]}, a),
        v2("/v2/deviceinfo", {"appkey": [a, i], "action": "stag", "params": {a: ["t1"], i: [two]}}, a, i),
        v2("/v2/errortoken", {"appkey": [i, o]}, i, o),
        v2("/v2/statistics", {"appkey": a, "type": 0, "param": {"dur": dur}}, a),
        v2("/v2/statistics", {"appkey": a, "type": 1, "param": {"msgid": msgid, "category": 2, "Info": "all"}}, a),
        v2("/v2/statistics", {"appkey": a, "type": 2, "param": {"dur": dur, "usertype": 1}}, a),
        v2("/v2/statistics", {"appkey": a, "type": 3, "param": {"dur": dur, "category": 1, "Info": "上海市"}}, a),
        legacy("android", "POST", "/push", message="m", is_notif=1, period=600, qps=5, **notification),
        legacy("android", "POST", "/push", message="m", is_notif="0", filter_v2=[[1, 2], [3]]),
        legacy("android", "POST", "/push", message="m", filter=[1, "2"], optfilter={"locate": ["北京市"]}),
        legacy("android", "POST", "/push", message="m", token=["t1", "t9"], alias=["alice"], alias_send_all=1),
        legacy("android", "POST", "/timed_msg", message="m", send_time="2026-09-22 12:00"),
        legacy("android", "DELETE", "/timed_msg", task_key=task_key),
        legacy("android", "DELETE", "/push", msgid=msgid),
        legacy("android", "POST", "/getAckInfo", pos="0", reqno=10),
        legacy("ios", "POST", "/push", message={"alert": "m"}, token=[one, four], badge=1, category="c"),
        legacy("ios", "POST", "/push", **{"message": "m", "content-available": 1, "transparent": 1, "extra": "e"}),
        legacy("ios", "POST", "/register", token=four),
        legacy("ios", "DELETE", "/register", token=four),
    ]
