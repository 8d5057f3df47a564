"""ClickHouse's HTTP interface in front of chdb, without sessions.

    python -m testkit.clickhouse.server_process DIRECTORY PORT

A query is the `query` parameter and then the body, plain or as a form; a parameter `param_x` is the {x:Type} of the
query, and all others but `database` and those of the transport are settings. The process prints its port once it
listens. User and password are those of `USER`; without them the answer is 403. An error in the file
`refusal_of(DIRECTORY)` is the answer to every insert.
"""

import base64
import json
import re
import sys
import tempfile
from collections.abc import Callable
from email.parser import BytesParser
from email.policy import HTTP
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import chdb
import pyarrow as pa

USER = "carillon:secret"
_TRANSPORT = {
    *("query", "database", "query_id", "wait_end_of_query", "client_protocol_version", "enable_http_compression"),
    *("send_progress_in_http_headers", "http_headers_progress_interval_ms", "buffer_size", "compress", "decompress"),
    "cancel_http_readonly_queries_on_client_close",
}
_FORMAT = re.compile(rb"\bFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
_INSERT = re.compile(rb"\s*(INSERT\s+INTO\s.+?)\s+FORMAT\s+(\w+)[ \t]*\r?\n", re.IGNORECASE | re.DOTALL)
_CODE = re.compile(r"Code: (\d+)")


class Call(NamedTuple):
    """A query and its parameters."""

    sql: bytes
    database: str
    settings: dict[str, str]
    parameters: dict[str, str]


class Answer(NamedTuple):
    body: bytes
    format: str
    rows: int


def refusal_of(directory: str) -> Path:
    return Path(f"{directory}.refusal")


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, directory: str, port: int) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self._connect: Callable[[], Any] = partial(chdb.connect, directory)
        self._engine = self._connect()
        self._refusal = refusal_of(directory)
        self.zone = self._engine.query("SELECT timezone()", "TabSeparated").bytes().decode().strip()

    def answer(self, call: Call) -> Answer:
        """Run a query. RuntimeError: the engine's exception, or the one that `refusal_of` holds."""
        if _INSERT.match(call.sql) and self._refusal.exists() and (error := self._refusal.read_text()):
            raise RuntimeError(error)
        connection = self._connect()
        try:
            if call.database:
                connection.query(f"USE {_identifier(call.database)}")
            for name, value in call.settings.items():
                connection.query(f"SET {_identifier(name)} = {_literal(value)}")
            return _run(connection, call)
        finally:
            connection.close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        if urlsplit(self.path).path == "/ping":
            self._send(HTTPStatus.OK, b"Ok.\n", {})
        else:
            self._query(b"")

    def do_POST(self) -> None:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(iter(self._chunk, b""))
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if coding := self.headers.get("Content-Encoding"):
            body = pa.input_stream(pa.BufferReader(body), compression=coding).read()
        self._query(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def _query(self, body: bytes) -> None:
        if self.headers.get("Authorization") != f"Basic {base64.b64encode(USER.encode()).decode()}":
            return self._fail(HTTPStatus.FORBIDDEN, "Code: 516. DB::Exception: Authentication failed")
        try:
            answer = self.server.answer(_call(self.path, self.headers.get("Content-Type", ""), body))
        except RuntimeError as error:
            return self._fail(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        summary = json.dumps({"read_rows" if answer.format else "written_rows": str(answer.rows)})
        headers = {"X-ClickHouse-Summary": summary, "X-ClickHouse-Timezone": self.server.zone}
        if answer.format:
            headers["X-ClickHouse-Format"] = answer.format
        return self._send(HTTPStatus.OK, answer.body, headers)

    def _fail(self, status: HTTPStatus, message: str) -> None:
        code = _CODE.search(message)
        self._send(status, f"{message}\n".encode(), {"X-ClickHouse-Exception-Code": code[1] if code else "1002"})

    def _send(self, status: HTTPStatus, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline().split(b";")[0], 16)
        chunk = self.rfile.read(size)
        self.rfile.readline()
        return chunk


def _call(target: str, content_type: str, body: bytes) -> Call:
    given = dict(parse_qsl(urlsplit(target).query, keep_blank_values=True))
    if content_type.startswith("multipart/form-data"):
        form = BytesParser(policy=HTTP).parsebytes(b"Content-Type: " + content_type.encode() + b"\r\n\r\n" + body)
        for part in form.iter_parts():
            value: Any = part.get_payload(decode=True)
            given[part["Content-Disposition"].params["name"]] = value.decode()
        body = b""
    return Call(
        sql=b"\n".join(filter(None, [given.get("query", "").encode(), body])),
        database=given.get("database", ""),
        settings={name: v for name, v in given.items() if name not in _TRANSPORT and not name.startswith("param_")},
        parameters={name[6:]: value for name, value in given.items() if name.startswith("param_")},
    )


def _run(connection: Any, call: Call) -> Answer:
    if insert := _INSERT.match(call.sql):
        with tempfile.NamedTemporaryFile() as file:
            file.write(call.sql[insert.end() :])
            file.flush()
            sql = f"{insert[1].decode()} FROM INFILE {_literal(file.name)} FORMAT {insert[2].decode()}"
            return Answer(b"", "", connection.query(sql).rows_read())
    named = _FORMAT.search(call.sql)
    result = connection.query(call.sql.decode(), "TabSeparated", params=call.parameters)
    body = result.bytes() or b""
    return Answer(body, named[1].decode() if named else "TabSeparated" if body else "", result.rows_read())


def _identifier(name: str) -> str:
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def main(directory: str, port: str) -> None:
    with Server(directory, int(port)) as server:
        print(server.server_port, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
