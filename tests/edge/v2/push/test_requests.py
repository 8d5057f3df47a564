"""POST /v2/push over HTTP: the message in the log, and how numbers and large contents are read."""

from protos.push.v1.push_pb2 import COMPARISON_GREATER_OR_EQUAL, ActivityClause, AndroidStyle, Filter, TagGroup
from protos.registry.v1.apps_pb2 import PLATFORM_IOS
from services.domain.apns_payload import payload
from testkit.edge.role import EdgeInstallation
from testkit.edge.sent_pushes import only_push
from testkit.edge.v2_bodies import broadcast, push_to


async def test_the_title_of_a_notification_is_the_apps_name_by_default(installation: EdgeInstallation) -> None:
    app = await installation.app()
    for title in ("", None, "own"):
        body = broadcast(app)
        body["msgStyle"]["android"] = {"title": title}
        await installation.push(body, app.appkey)
    body["msgStyle"]["basic"]["is_notif"] = 0
    await installation.push(body, app.appkey)
    first, second, own, pass_through = [push.message.android for push in await installation.sent()]
    assert [first.title, second.title, own.title] == [app.name, app.name, "own"]
    assert pass_through == AndroidStyle()


async def test_integers_as_strings_of_digits(installation: EdgeInstallation) -> None:
    app = await installation.app()
    options = {"activity_7": {">=": "3"}}
    body = push_to(app, 8, tag=[["1", "-2"], ["3"]], optfilter={"android": options})
    body["sendTo"]["userScope"] = "8"
    body["msgStyle"]["basic"]["is_notif"] = "1"
    landing = {"picture-addr": "p", "jump-seconds": "5", "jump-button": 1, "rate": 1.50}
    body["msgStyle"]["android"] = {"badge": "-1", "click_action": "4", "click_param": landing}
    body["option"] = {"period": "90", "qps": "7", "timed": "2", "send_time_interval": "60"}
    answer = await installation.push(body, app.appkey)
    assert answer["result"] == 0, answer
    (command,) = await installation.tasks()
    (push,) = command.create.pushes
    assert push.audience.filter == Filter(
        tags=[TagGroup(tags=[1, -2]), TagGroup(tags=[3])],
        activity=[ActivityClause(days=7, comparison=COMPARISON_GREATER_OR_EQUAL, opens=3)],
    )
    assert (push.period_s, push.qps, command.create.due_ms) == (90, 7, installation.clock.now_ms() + 60_000)
    assert (push.message.is_notif, push.message.android.badge) == (True, -1)
    assert push.message.android.click_param_json == ('{"picture-addr":"p","jump-seconds":5,"jump-button":1,"rate":1.5}')


async def test_a_badge_alone_for_ios(installation: EdgeInstallation) -> None:
    app = await installation.app(PLATFORM_IOS)
    body = push_to(None, 2, ios=app.appkey)
    body["msgStyle"] = {"basic": {"content": "", "is_notif": 1}, "ios": {"badge": 0}}
    assert (await installation.push(body, app.appkey))["result"] == 0
    assert payload((await only_push(installation)).message) == b'{"aps":{"badge":0}}'


async def test_a_message_too_large_for_the_log_is_the_callers_fault(installation: EdgeInstallation) -> None:
    app = await installation.app()
    body = broadcast(app)
    body["msgStyle"]["basic"]["content"] = "x" * 800_000
    for headers in ({}, {"Idempotency-Key": "k"}):
        answer = await installation.call("POST", "/v2/push", body, app.appkey, **headers)
        assert answer == {
            "result": 400,
            "desc": "input error: the request is too large: it makes a record of 800016 bytes, of which the event log"
            " takes at most 768928; the largest part is the content with 800000 bytes",
        }
    body["msgStyle"]["basic"]["content"] = "x" * 600_000
    assert (await installation.push(body, app.appkey))["result"] == 0
    body["msgStyle"]["basic"]["content"] = "世" * 250_000
    assert (await installation.push(body, app.appkey))["result"] == 0
    assert [push.request_json for push in await installation.sent()] == ["", ""]
