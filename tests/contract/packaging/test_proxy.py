"""deploy/haproxy.cfg agrees with docker-compose.yml and the edge's settings, and HAProxy serves TLS with it."""

import asyncio
import contextlib
import json
import re
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.net.http.server import HttpListener
from testkit import plain_http
from testkit.ports import free_ports
from testkit.programs import installed
from testkit.repository import ROOT
from testkit.services import running_services
from testkit.waiting import until
from tests.contract.packaging.container_files import COMPOSE, SERVICES, configs, environment, settings

HAPROXY = installed("haproxy")
CONFIG = (ROOT / "deploy/haproxy.cfg").read_text()


def test_every_interface_is_passed_on_to_the_port_of_the_same_number() -> None:
    edge = settings("edge")
    binds = re.findall(r"bind :(\d+) ssl crt /certs/carillon.pem ", CONFIG)
    servers = re.findall(r"server edge edge:(\d+) check port (\d+) ", CONFIG)
    assert [int(port) for port in binds] == list(edge.interface_ports)
    assert [int(port) for port, _ in servers] == list(edge.interface_ports)
    assert {int(port) for _, port in servers} == {edge.console_port}
    assert len(re.findall(r"^frontend ", CONFIG, re.MULTILINE)) == len(binds) + 1
    given = configs("proxy")
    assert given["/usr/local/etc/haproxy/haproxy.cfg"] == ROOT / "deploy/haproxy.cfg"
    assert SERVICES["proxy"]["volumes"] == ["./certs:/certs:ro"]
    most = re.search(r"maxconn (\d+)", CONFIG)
    assert most
    assert SERVICES["proxy"]["ulimits"]["nofile"] > 2 * int(most[1]) + 100
    health = re.search(r"bind 127.0.0.1:(\d+)", CONFIG)
    assert health
    assert f"127.0.0.1:{health[1]}/healthz" in SERVICES["proxy"]["healthcheck"]["test"][-1]


def test_the_edge_believes_this_proxy_alone_and_only_the_proxy_reaches_it_from_outside() -> None:
    (network,) = COMPOSE["networks"]["front"]["ipam"]["config"]
    addresses = {name: SERVICES[name]["networks"]["front"]["ipv4_address"] for name in ("proxy", "edge")}
    assert environment("edge")["CARILLON_TRUSTED_PROXIES"] == addresses["proxy"]
    assert len(set(addresses.values())) == 2
    subnet = ip_network(network["subnet"])
    docker_takes_the_first = next(subnet.hosts())
    for address in addresses.values():
        assert ip_address(address) in subnet
        assert ip_address(address) != docker_takes_the_first
    assert list(SERVICES["proxy"]["networks"]) == ["front"]
    assert [name for name, service in SERVICES.items() if "front" in service.get("networks", {})] == ["edge", "proxy"]


def test_the_consoles_examples_have_the_address_of_the_proxy() -> None:
    """The host is the one of the certificate that deploy/secrets.sh makes by default."""
    port = settings("edge").v2_port
    assert f"bind :{port} ssl " in CONFIG
    assert settings("console").v2_url == f"https://localhost:{port}"
    assert settings("console").gateway_url == "ws://127.0.0.1:8400/device/v1"


@pytest.fixture
def certified(tmp_path: Path) -> Path:
    """Return a directory in which deploy/secrets.sh has written a certificate for localhost."""
    (tmp_path / "deploy").mkdir()
    script = shutil.copy(ROOT / "deploy/secrets.sh", tmp_path / "deploy")
    subprocess.run([script, "localhost"], check=True, stdout=subprocess.DEVNULL)
    return tmp_path


@contextlib.asynccontextmanager
async def running_proxy(directory: Path, edge_port: int) -> AsyncIterator[list[int]]:
    """Run HAProxy with its file, but on free ports and with an edge of this process; yield the interfaces' ports."""
    *ports, health = free_ports(4)
    text = CONFIG.replace("/certs/", f"{directory}/certs/").replace("127.0.0.1:8404", f"127.0.0.1:{health}")
    for port, here in zip(settings("edge").interface_ports, ports, strict=True):
        text = text.replace(f"bind :{port} ", f"bind 127.0.0.1:{here} ")
    text = re.sub(r"edge:\d+ check port \d+ resolvers.*", f"127.0.0.1:{edge_port} check port {edge_port}", text)
    text = re.sub(r"maxconn \d+", "maxconn 100", text)
    file = directory / "haproxy.cfg"
    file.write_text(text)
    assert HAPROXY is not None
    process = await asyncio.create_subprocess_exec(HAPROXY, "-db", "-f", str(file), stderr=subprocess.DEVNULL)
    try:

        async def healthy() -> bool:
            async with plain_http.async_client() as http:
                with contextlib.suppress(httpx.TransportError):
                    return (await http.get(f"http://127.0.0.1:{health}/healthz")).status_code == 200
            return False

        await until(healthy)
        yield ports
    finally:
        process.kill()
        await process.wait()


@pytest.mark.skipif(HAPROXY is None, reason="HAProxy is not installed: apt-get install haproxy")
async def test_requests_reach_the_edge_over_tls_with_the_address_that_the_proxy_saw(certified: Path) -> None:
    async def echo(scope: Any, receive: Any, send: Any) -> None:
        body = json.dumps([value.decode() for name, value in scope["headers"] if name == b"x-forwarded-for"]).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    listener = HttpListener("echo", echo, "127.0.0.1", 0)
    async with running_services([listener]), running_proxy(certified, listener.port) as ports:
        trusted = ssl.create_default_context(cafile=str(certified / "certs/carillon.pem"))
        async with httpx.AsyncClient(verify=trusted) as http:
            for port in ports:
                forged = {"X-Forwarded-For": "10.1.2.3", "x-forwarded-for": "10.9.9.9"}
                answer = await http.post(f"https://localhost:{port}/push", headers=forged, content=b"{}")
                assert (answer.status_code, answer.json()) == (200, ["127.0.0.1"])
                assert answer.headers["strict-transport-security"]
                with pytest.raises(httpx.TransportError):
                    await http.post(f"http://localhost:{port}/push", content=b"{}")
        async with httpx.AsyncClient() as strict:
            with pytest.raises(httpx.ConnectError, match="certificate"):
                await strict.get(f"https://localhost:{ports[0]}/")


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve an edge that is ready, and ends when it is asked for anything else than its health, or hangs."""
    head = await reader.readuntil(b"\r\n\r\n")
    if head.startswith(b"GET /healthz"):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
    elif head.startswith(b"POST /hangs"):
        with contextlib.suppress(ConnectionError):
            await reader.read()
    writer.close()


@pytest.mark.skipif(HAPROXY is None, reason="HAProxy is not installed: apt-get install haproxy")
async def test_app_servers_get_json_from_the_proxy_too(certified: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What HAProxy answers itself, for an edge that is away, hangs or ends."""
    quick = re.sub(r"timeout server \S+", "timeout server 400ms", CONFIG)
    monkeypatch.setattr("tests.contract.packaging.test_proxy.CONFIG", quick)
    server = await asyncio.start_server(_hang_up, "127.0.0.1", 0)
    (away,) = free_ports(1)
    async with server, running_proxy(certified, server.sockets[0].getsockname()[1]) as ports:
        for port in ports:
            assert await _answered(certified, port, b"POST /ends HTTP/1.1\r\nhost: a\r\n\r\n") == 502
        assert await _answered(certified, ports[0], b"POST /hangs HTTP/1.1\r\nhost: a\r\n\r\n") == 504
    async with running_proxy(certified, away) as ports:
        for port in ports:
            assert await _answered(certified, port, b"POST /v2/push HTTP/1.1\r\nhost: a\r\n\r\n") == 503


async def _answered(certified: Path, port: int, sent: bytes) -> int:
    """Send these bytes over TLS, check that the answer is one of our JSON objects, and return its status."""
    trusted = ssl.create_default_context(cafile=str(certified / "certs/carillon.pem"))
    reader, writer = await asyncio.open_connection("localhost", port, ssl=trusted)
    writer.write(sent)
    async with asyncio.timeout(30):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = re.search(r"content-length: (\d+)", head)
        assert length
        told = json.loads(await reader.readexactly(int(length[1])))
    writer.close()
    status = int(head.split()[1])
    assert "content-type: application/json" in head
    assert sorted(told) == ["desc", "result"]
    assert told["result"] == status
    assert told["desc"]
    return status
