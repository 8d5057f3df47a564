"""POST /v2/push over HTTP, to every kind of audience: what is answered, and what is in the log."""

from tests.edge.conftest import Installation, broadcast


async def test_broadcast(installation: Installation) -> None:
    app = await installation.app()
    answer = await installation.push(broadcast(app), app.appkey)
    assert answer == {"result": 0, "desc": "send ok", "id": answer["id"]}
    (push,) = await installation.sent()
    assert push.msgid == answer["id"]
    assert push.audience.WhichOneof("audience") == "everyone"
