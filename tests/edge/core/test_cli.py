"""`carillon sign` and `carillon send` against a running v2 interface."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from carillon.commands.send import send, sign
from carillon.environment import check_names
from testkit.edge.role import EdgeInstallation
from testkit.edge.v2_bodies import broadcast
from testkit.signing import reference_sign

BODY = b'{ "b": 1.50, "a": {"z": "\xe4\xb8\x96", "y": [1e3]}, "sign": "stale" }'


def test_sign_prints_the_sign_of_a_file_or_of_standard_input(tmp_path: Path) -> None:
    path = tmp_path / "body.json"
    path.write_bytes(BODY)
    expected = reference_sign(BODY, "first", "second") + "\n"
    secrets = ["--secret", "first", "--secret", "second"]
    assert CliRunner().invoke(sign, [*secrets, str(path)]).output == expected
    assert CliRunner().invoke(sign, [*secrets, "-"], input=BODY).output == expected


def test_sign_reports_a_wrong_request() -> None:
    result = CliRunner().invoke(sign, ["--secret", "s", "-"], input=b'{"a":1,"a":2}')
    assert result.exit_code == 1
    assert result.output == "Error: the request cannot be signed: a is given twice\n"
    assert CliRunner().invoke(sign, ["-"], input=b"{}").exit_code == 2


def test_secrets_come_from_files_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    expected = reference_sign(BODY, "first", "second") + "\n"
    files = [tmp_path / "one", tmp_path / "two"]
    for file, secret in zip(files, ("first", " second\n"), strict=True):
        file.write_text(secret)
    from_files = [word for file in files for word in ("--secret-file", str(file))]
    assert CliRunner().invoke(sign, [*from_files, "-"], input=BODY).output == expected
    of_process = CliRunner(env={"CARILLON_APP_SECRET": "first second"})
    assert of_process.invoke(sign, ["-"], input=BODY).output == expected
    assert of_process.invoke(sign, ["--secret", "s", "-"], input=BODY).output == reference_sign(BODY, "s") + "\n"
    (tmp_path / ".env").write_text("CARILLON_APP_SECRET='first second'\n")
    assert CliRunner().invoke(sign, ["-"], input=BODY).output == expected
    check_names({"CARILLON_APP_SECRET": "s"})

    files[0].write_text("first\nsecond\n")
    for wrong, told in (
        ([*from_files, "-"], "must hold one secret key and nothing else"),
        (["--secret-file", "none", "-"], "none cannot be read"),
        (["--secret", "", "-"], "an empty text is no secret key"),
        (["--secret", "first", "--secret", " ", "-"], "an empty text is no secret key"),
        ([*from_files, "--secret", "s", "-"], "their order counts"),
    ):
        refused = CliRunner().invoke(sign, wrong, input=BODY)
        assert (refused.exit_code, told in " ".join(refused.output.split())) == (2, True), refused.output


@pytest.mark.parametrize("command", [sign, send])
def test_a_secret_that_is_not_utf8_is_one_clear_line(command: click.Command) -> None:
    url = ["--url", "http://127.0.0.1:1/"] if command is send else []
    not_utf8 = os.fsdecode(b"\xff")
    for arguments, env, source in (
        (["--secret", not_utf8], {}, "--secret"),
        ([], {"CARILLON_APP_SECRET": not_utf8}, "CARILLON_APP_SECRET"),
    ):
        refused = CliRunner(env=env).invoke(command, [*arguments, *url, "-"], input=BODY)
        assert refused.exit_code == 2
        assert f"Error: {source} holds bytes that are not UTF-8" in refused.output


async def run_send(body: bytes, *arguments: str) -> Result:
    return await asyncio.to_thread(lambda: CliRunner().invoke(send, [*arguments, "-"], input=body))


async def test_send_signs_sends_and_prints_the_answer(installation: EdgeInstallation) -> None:
    app = await installation.app()
    url = f"{str(installation.http.base_url).rstrip('/')}/v2/push"
    body: dict[str, Any] = broadcast(app)
    raw = json.dumps(body)[:-1].encode() + b',"number":1.50}'
    secret = installation.secrets[app.appkey]
    sent = await run_send(raw, "--secret", secret, "--url", url, "--json")
    assert sent.exit_code == 0, sent.output
    (line,) = sent.output.splitlines()
    assert json.loads(line)["desc"] == "send ok"
    (push,) = await installation.sent()
    assert '"number":1.50' in push.request_json
    readable = await run_send(raw, "--secret", secret, "--url", url)
    assert json.loads(readable.output)["result"] == 0
    assert len(readable.output.splitlines()) > 1
    refused = await run_send(raw, "--secret", "wrong", "--url", url)
    assert (refused.exit_code, json.loads(refused.output)["result"]) == (1, 401)
    wrong_method = await run_send(raw, "--secret", secret, "--url", url, "--method", "DELETE")
    assert (wrong_method.exit_code, json.loads(wrong_method.output)["result"]) == (1, 405)


async def test_send_reports_that_no_server_answers() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    result = await run_send(b"{}", "--secret", "s", "--url", f"http://127.0.0.1:{port}/")
    assert result.exit_code == 1
    assert result.output.startswith(f"Error: no answer from http://127.0.0.1:{port}/: ")
    nonsense = await run_send(b"{}", "--secret", "s", "--url", "127.0.0.1")
    assert nonsense.output.startswith("Error: no answer from 127.0.0.1: ")
