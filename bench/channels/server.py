"""A server in the place of push services: HAProxy, which reads each request and gives the same answer to all."""

import contextlib
import csv
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.programs import connected
from services.push_simulator.certificates import SelfSigned
from testkit.ports import free_ports

_CONFIGURATION = """
global
  nbthread 1
defaults
  mode http
  timeout client 60s
  timeout server 60s
  timeout connect 5s
  timeout http-request 30s
frontend services
  bind 127.0.0.1:{tls} ssl crt {directory}/server.pem alpn h2,http/1.1
  bind 127.0.0.1:{plain}
  option http-buffer-request
  http-request return status 200 content-type application/json string '{token}' if {{ path /token }}
  http-request return status 200 content-type application/json string '{accepted}' if {{ path_beg /v1/projects/ }}
  http-request return status 200 content-type application/json string '{sent}' if {{ path_beg /v2/ }}
  http-request return status 200 content-type application/json string '{honor}' if {{ path_beg /api/v1/ }}
  http-request return status 200 content-type application/json string '{xiaomi}' if {{ path_beg /v3/message/ }}
  http-request return status 200 content-type application/json string '{oppo}' if {{ path_beg /server/v1/ }}
  http-request return status 200 content-type application/json string '{vivo}' if {{ path_beg /message/ }}
  http-request return status 201 hdr ttl 60
frontend statistics
  bind 127.0.0.1:{statistics}
  stats enable
  stats uri /
"""
_TOKEN = '{"access_token":"ya29.bench","expires_in":3599,"token_type":"Bearer"}'
_SENT = '{"code":"80000000","msg":"Success","requestId":"1"}'
_VENDORS = {
    "honor": '{"code":200,"message":"Success","data":{"sendResult":true,"requestId":"1"}}',
    "xiaomi": '{"result":"ok","code":0,"trace_id":"1","data":{"id":"1"}}',
    "oppo": '{"code":0,"message":"Success","data":{"messageId":"1","auth_token":"1"}}',
    "vivo": '{"result":0,"desc":"success","taskId":"1","authToken":"1"}',
}
"""What each vendor answers, to messages and to requests for a token."""

_ACCEPTED = '{"name":"projects/bench/messages/0:1"}'


class Server(NamedTuple):
    """Where the server listens: by TLS, with HTTP/2 and HTTP/1.1, and without. `certificate`: the file to trust."""

    tls_port: int
    plain_port: int
    certificate: Path
    statistics_port: int

    def taken(self) -> int:
        """Return how many requests the server has taken."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.statistics_port}/;csv", timeout=10) as answer:
            rows = csv.DictReader(answer.read().decode().removeprefix("# ").splitlines())
        return next(int(row["req_tot"]) for row in rows if (row["pxname"], row["svname"]) == ("services", "FRONTEND"))


@contextlib.contextmanager
def server(directory: Path) -> Iterator[Server]:
    """Run the server, on the last core of the machine."""
    made = SelfSigned.make("127.0.0.1")
    (directory / "server.pem").write_text(made.certificate_pem + made.key_pem)
    (directory / "certificate.pem").write_text(made.certificate_pem)
    tls, plain, statistics = free_ports(3)
    configuration = directory / "haproxy.cfg"
    configuration.write_text(
        _CONFIGURATION.format(
            **{"tls": tls, "plain": plain, "statistics": statistics, "directory": directory},
            **{"token": _TOKEN, "accepted": _ACCEPTED, "sent": _SENT, **_VENDORS},
        )
    )
    process = subprocess.Popen(["haproxy", "-db", "-f", str(configuration)])
    os.sched_setaffinity(process.pid, {sorted(os.sched_getaffinity(0))[-1]})
    try:
        connected(plain).close()
        yield Server(tls, plain, directory / "certificate.pem", statistics)
    finally:
        process.terminate()
        process.wait()
