"""The floor of bench.end_to_end: passes each request on as a frame to the device that it names, and stores nothing."""

import json
import sys
from typing import Any

import uvicorn
import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server

devices: dict[str, WSTransport] = {}


class Connection(WSListener):
    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT and b"hello" in frame.get_payload_as_bytes():
            token = str(len(devices))
            devices[token] = transport
            transport.send(WSMsgType.TEXT, json.dumps({"type": "welcome", "token": token}).encode())


async def application(scope: Any, receive: Any, send: Any) -> None:
    body = b""
    if scope["method"] == "POST":
        more = True
        while more:
            part = await receive()
            body += part.get("body", b"")
            more = part.get("more_body", False)
        push = json.loads(body)
        frame = {"type": "push", "msgid": 1, "content": push["msgStyle"]["basic"]["content"]}
        devices[push["sendTo"]["token"]["android"]].send(WSMsgType.TEXT, json.dumps(frame).encode())
    answer = b'{"result":0,"id":1}'
    headers = [(b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})


def connection(request: WSUpgradeRequest) -> Connection:
    return Connection()


async def main(http_port: int, ws_port: int) -> None:
    await ws_create_server(connection, "127.0.0.1", ws_port, use_aiofastnet=False, read_buffer_init_size=2048)
    config = uvicorn.Config(application, host="127.0.0.1", port=http_port, loop="none", log_level="error")
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
