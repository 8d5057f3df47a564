"""String tags over HTTP: added, deleted and listed per device, and applied by targeting when answered."""

from collections.abc import Mapping
from typing import Any

import pytest
from falcon.asgi import Request

from edge.core.request_limiter import LONG_LIST, RequestLimiter
from protos.push.v1.push_pb2 import Audience, Filter, StagGroup
from protos.registry.v1.apps_pb2 import PLATFORM_IOS, App
from protos.registry.v1.devices_pb2 import DeviceCommand, RemoveDevice
from protos.targeting.v1.targeting_pb2 import ResolveRequest
from protos.targeting.v1.targeting_pb2_grpc import TargetingServiceStub
from services.domain.limits import MAX_DEVICE_STAGS
from services.domain.topics import DEVICE_COMMANDS
from services.log.port import Partition
from testkit.edge.role import PARTITIONS, EdgeInstallation

ADDED = {"result": 0, "desc": "add token done"}
DELETED = {"result": 0, "desc": "delete token done"}
UNKNOWN = {"result": 401, "desc": "token not found"}


async def change(installation: EdgeInstallation, method: str, app: App, params: Any, name: str = "params") -> Any:
    body = {"appkey": app.appkey, "action": "stag", name: params}
    return await installation.call(method, "/v2/device", body, app.appkey)


async def info(installation: EdgeInstallation, app: App, *tokens: str) -> Any:
    body = {"appkey": app.appkey, "action": "stag", "params": list(tokens)}
    return await installation.call("POST", "/v2/deviceinfo", body, app.appkey)


async def stags(installation: EdgeInstallation, app: App, token: str) -> list[str]:
    found: list[str] = (await info(installation, app, token))["detailsinfo"][0]["infolist"]
    return found


async def reached(installation: EdgeInstallation, app: App, stag: str) -> int:
    """How many devices a push to the tag would have in its audience now."""
    targeting = TargetingServiceStub(installation.context.peers.all("targeting")[0])
    audience = Audience(filter=Filter(stags=[StagGroup(stags=[stag])]))
    request = ResolveRequest(appkey=app.appkey, audience=audience, partitions=range(PARTITIONS))
    return sum(part.count for part in (await targeting.Resolve(request)).partitions)


async def commands(installation: EdgeInstallation) -> int:
    """Return the number of device commands in the log."""
    partitions = [Partition(DEVICE_COMMANDS.name, number) for number in range(PARTITIONS)]
    return sum((await installation.log.ends(partitions)).values())


@pytest.fixture(params=["params", "param"])
def name(request: pytest.FixtureRequest) -> str:
    """The name of the field, which the interface accepts in both forms."""
    return str(request.param)


async def test_added_deleted_and_listed_in_the_order_of_the_request(installation: EdgeInstallation, name: str) -> None:
    app = await installation.app()
    for token in ("a", "b"):
        await installation.device(app, token)
    added = await change(installation, "POST", app, {"b": ["sport", "新闻"], "x": ["sport"], "a": ["sport"]}, name)
    details = [{"token": "b", **ADDED}, {"token": "x", **UNKNOWN}, {"token": "a", **ADDED}]
    assert added == {**ADDED, "detailsinfo": details}
    assert list(added["detailsinfo"][0]) == ["token", "result", "desc"]
    assert await reached(installation, app, "sport") == 2
    body = {"appkey": app.appkey, "action": "stag", name: ["x", "a", "b", "a"]}
    entries = [
        {"token": "x", **UNKNOWN, "infolist": []},
        {"token": "a", "result": 0, "desc": "ok", "infolist": ["sport"]},
        {"token": "b", "result": 0, "desc": "ok", "infolist": ["sport", "新闻"]},
        {"token": "a", "result": 0, "desc": "ok", "infolist": ["sport"]},
    ]
    listed = await installation.call("POST", "/v2/deviceinfo", body, app.appkey)
    assert listed == {"result": 0, "desc": "ok", "detailsinfo": entries}
    deleted = await change(installation, "DELETE", app, {"b": ["sport", "never"], "x": ["sport"]}, name)
    assert deleted == {**DELETED, "detailsinfo": [{"token": "b", **DELETED}, {"token": "x", **UNKNOWN}]}
    assert await stags(installation, app, "b") == ["新闻"]
    assert await reached(installation, app, "sport") == 1


IOS_TOKEN = "ab" * 32


async def test_several_apps_of_both_platforms(installation: EdgeInstallation) -> None:
    first, second, third = await installation.app(PLATFORM_IOS), await installation.app(), await installation.app()
    for app in (first, second, third):
        await installation.device(app, IOS_TOKEN if app is first else "t")
    keys = [first.appkey, second.appkey, third.appkey]
    params: Mapping[str, Any] = {second.appkey: {"t": ["a"], "x": ["a"]}, first.appkey: {IOS_TOKEN: ["b"]}}
    body = {"appkey": keys, "action": "stag", "params": params}
    for method, done in (("POST", ADDED), ("DELETE", DELETED)):
        answer = await installation.call(method, "/v2/device", body, *keys)
        assert answer == {
            **done,
            first.appkey: {**done, "detailsinfo": [{"token": IOS_TOKEN, **done}]},
            second.appkey: {**done, "detailsinfo": [{"token": "t", **done}, {"token": "x", **UNKNOWN}]},
            third.appkey: {**done, "detailsinfo": []},
        }
        asked = {"appkey": keys, "action": "stag", "params": {first.appkey: [IOS_TOKEN], second.appkey: ["t"]}}
        found = await installation.call("POST", "/v2/deviceinfo", asked, *keys)
        wanted = [["b"], ["a"]] if method == "POST" else [[], []]
        assert [found[key]["detailsinfo"][0]["infolist"] for key in keys[:2]] == wanted
        assert (found["result"], found["desc"], found[third.appkey]["detailsinfo"]) == (0, "ok", [])


async def test_a_list_of_one_app_is_answered_by_app(installation: EdgeInstallation) -> None:
    app = await installation.app()
    body = {"appkey": [app.appkey], "action": "stag", "params": {app.appkey: {"x": ["a"]}}}
    answer = await installation.call("POST", "/v2/device", body, app.appkey)
    assert answer[app.appkey]["detailsinfo"] == [{"token": "x", **UNKNOWN}]


async def test_the_secrets_follow_the_order_of_the_apps(installation: EdgeInstallation) -> None:
    keys = [(await installation.app()).appkey for _ in range(2)]
    body = {"appkey": keys, "action": "stag", "params": {keys[0]: {"t": ["a"]}}}
    assert (await installation.call("POST", "/v2/device", body, *keys))["result"] == 0
    for signers in (keys[::-1], keys[:1], []):
        answer = await installation.call("POST", "/v2/device", body, *signers)
        assert answer == {"result": 401, "desc": "sign not correct"}


async def test_a_removed_device_is_not_found(installation: EdgeInstallation) -> None:
    app = await installation.app()
    await installation.device(app, "t")
    await installation.command(app.appkey, "t", DeviceCommand(remove=RemoveDevice(reason="unregistered")))
    assert (await change(installation, "POST", app, {"t": ["a"]}))["detailsinfo"] == [{"token": "t", **UNKNOWN}]
    assert (await info(installation, app, "t"))["detailsinfo"][0]["result"] == 401


LONG = "é" * 20
"""40 bytes."""


CHANGES: list[tuple[Any, str | None]] = [
    ({"t": [LONG]}, None),
    ({"t": [f"s{number}" for number in range(100)]}, None),
    ({f"t{number}": ["a"] for number in range(1000)}, None),
    ({"t": ["世" * 13 + "a"]}, None),
    ({"t": ["世" * 14]}, "params.t[0] must have 1 to 40 bytes"),
    ({"t": [LONG + "x"]}, "params.t[0] must have 1 to 40 bytes"),
    ({"t": ["a", "b" * 41]}, "params.t[1] must have 1 to 40 bytes"),
    ({"t": [""]}, "params.t[0] must not be empty"),
    ({"t": []}, "params.t must not be empty"),
    ({"t": "a"}, "params.t must be a list"),
    ({"t": ["a"], "u": ["b"], "t.1 [x]": ["c", 7], "v": [7]}, "params.t.1 [x][1] must be a string"),
    ({"t": [f"s{number}" for number in range(101)]}, "params.t must have at most 100 entries"),
    ({f"t{number}": ["a"] for number in range(1001)}, "params must have at most 1000 entries"),
    ({}, "params must not be empty"),
    ([], "params must not be empty"),
    ("t", "params must be an object"),
    (None, "params is missing"),
]


async def test_limits_of_a_change(installation: EdgeInstallation) -> None:
    for params, problem in CHANGES:
        app = await installation.app()
        await installation.device(app, "t")
        for method in ("POST", "DELETE"):
            answer = await change(installation, method, app, params)
            if problem is None:
                assert answer["result"] == 0
                assert len(answer["detailsinfo"]) == len(params)
            else:
                assert answer == {"result": 400, "desc": f"input error: {problem}"}


QUERIES: list[tuple[Any, str | None]] = [
    ([f"t{number}" for number in range(1000)], None),
    ([""], None),
    ([f"t{number}" for number in range(1001)], "params must have at most 1000 entries"),
    ([], "params must not be empty"),
    ([7], "params[0] must be a string"),
    ({"t": ["a"]}, "params must be a list"),
    (None, "params is missing"),
]


async def test_limits_of_a_query(installation: EdgeInstallation) -> None:
    for params, problem in QUERIES:
        app = await installation.app()
        body = {"appkey": app.appkey, "action": "stag", "params": params}
        answer = await installation.call("POST", "/v2/deviceinfo", body, app.appkey)
        if problem is None:
            assert [entry["result"] for entry in answer["detailsinfo"]] == [401] * len(params)
        else:
            assert answer == {"result": 400, "desc": f"input error: {problem}"}


FIELDS: list[tuple[dict[str, Any], str | None]] = [
    ({"action": None}, "action must be a string"),
    ({"action": "tag"}, "action must not be 'tag'"),
    ({"action": 1}, "action must be a string"),
    ({"param": {"t": ["b"]}}, "params and param differ; give one of them"),
    ({"param": {"t": ["a"]}}, None),
    ({"param": None}, None),
]


async def test_fields_of_a_change(installation: EdgeInstallation) -> None:
    for fields, problem in FIELDS:
        app = await installation.app()
        body = {"appkey": app.appkey, "action": "stag", "params": {"t": ["a"]}, **fields}
        answer = await installation.call("POST", "/v2/device", body, app.appkey)
        if problem is None:
            assert answer["result"] == 0
        else:
            assert answer == {"result": 400, "desc": f"input error: {problem}"}


async def test_params_of_several_apps(installation: EdgeInstallation) -> None:
    keys = [(await installation.app()).appkey for _ in range(2)]
    many = {f"t{number}": ["a"] for number in range(501)}
    cases: list[tuple[Any, str]] = [
        ({"1": {"t": ["a"]}}, "params.1 is none of the apps in appkey"),
        ({keys[0]: {"s": ["a"], "t": "a"}}, f"params.{keys[0]}.t must be a list"),
        ({keys[0]: {"t": ["x" * 41]}}, f"params.{keys[0]}.t[0] must have 1 to 40 bytes"),
        ({keys[0]: {}}, f"params.{keys[0]} must not be empty"),
        ({keys[0]: many, keys[1]: many}, "params must have at most 1000 tokens in all"),
        ({}, "params must not be empty"),
        ({"t": ["a"]}, "params.t is none of the apps in appkey"),
    ]
    for params, problem in cases:
        body = {"appkey": keys, "action": "stag", "params": params}
        answer = await installation.call("POST", "/v2/device", body, *keys)
        assert answer == {"result": 400, "desc": f"input error: {problem}"}


async def test_a_device_has_at_most_a_thousand_tags(installation: EdgeInstallation) -> None:
    app = await installation.app()
    await installation.device(app, "t")
    tags = [f"s{number:04}" for number in range(MAX_DEVICE_STAGS + 1)]
    for start in range(0, MAX_DEVICE_STAGS, 100):
        answer = await change(installation, "POST", app, {"t": tags[start : start + 100]})
        assert answer["detailsinfo"] == [{"token": "t", **ADDED}]
    full = {"token": "t", "result": 400, "desc": "input error: a device has at most 1000 stags"}
    assert (await change(installation, "POST", app, {"t": tags[-2:]}))["detailsinfo"] == [full]
    assert (await change(installation, "POST", app, {"t": tags[:2]}))["detailsinfo"] == [{"token": "t", **ADDED}]
    assert await stags(installation, app, "t") == tags[:MAX_DEVICE_STAGS]
    assert (await change(installation, "DELETE", app, {"t": tags[:1]}))["result"] == 0
    assert (await change(installation, "POST", app, {"t": tags[-1:]}))["detailsinfo"] == [{"token": "t", **ADDED}]


async def test_a_refused_change_leaves_no_command(installation: EdgeInstallation) -> None:
    app = await installation.app()
    await installation.device(app, "t")
    before = await commands(installation)
    await change(installation, "POST", app, {"t": ["a"], "x": ["b" * 41]})
    await change(installation, "POST", app, {"x": ["a"]})
    assert await commands(installation) == before
    await change(installation, "POST", app, {"t": ["a"], "x": ["a"]})
    assert await commands(installation) == before + 1


async def test_long_lists_take_turns_with_broadcasts(
    installation: EdgeInstallation, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[str] = []

    async def noted(limiter: RequestLimiter, request: Request, appkey: str) -> None:
        entered.append(request.path)

    monkeypatch.setattr(RequestLimiter, "enter_broadcast_or_multicast", noted)
    app = await installation.app()
    for count, turns in ((LONG_LIST, 0), (LONG_LIST + 1, 1)):
        tokens = [f"t{number}" for number in range(count)]
        for method in ("POST", "DELETE"):
            await change(installation, method, app, {key: ["a"] for key in tokens})
        await info(installation, app, *tokens)
        assert entered == ["/v2/device", "/v2/device", "/v2/deviceinfo"] * turns
