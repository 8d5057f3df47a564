"""The fuzzer: a short run finds nothing, what it plants in the service it finds, and its cases can be made again."""

import re
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from edge.core.parsing.canonical import canonical_text
from edge.v2.tags import StringTags
from services.errors import InputError
from services.process.logs import logger
from testkit.signing import reference_sign, reference_text
from tests.soak.fuzz import findings, run
from tests.soak.fuzz.__main__ import main
from tests.soak.fuzz.answers import Answer, checked, pipeline_problem, repeated_problem
from tests.soak.fuzz.cases import Call, Head, Names, Pipeline, WireFrames
from tests.soak.fuzz.findings import Finding
from tests.soak.fuzz.generator import Generator, Template, device_frames, hello_frames
from tests.soak.fuzz.run import Plan, Progress, fuzz, replay
from tests.soak.fuzz.values import parsed, written

_SEED = 20261122
_BODY = '{"appkey":"7000000001","message":"m","period":600,"token":["a"],"n":{"x":[1,"é",null,true]}}'


async def fuzzed(count: int, *, with_analytics: bool = False) -> Progress:
    progress = Progress()
    plan = Plan(_SEED, 0, count, organisations=3, with_analytics=with_analytics)
    await fuzz(plan, progress, lambda found: None)
    return progress


def generator(seed: int = _SEED) -> Generator:
    call = Template("android", "POST", "/push", parsed(_BODY), ("7000000001",))
    return Generator(seed, [call], device_frames(5), hello_frames(["7000000001"], ["t", "u"], ["k", "l"]))


async def test_a_short_run_reaches_every_interface_and_finds_nothing() -> None:
    progress = await fuzzed(300)
    assert progress.findings == []
    assert progress.bodies > progress.sent.total() == 300
    assert {"v2", "android", "ios", "gateway frames", "gateway heads", "v2 by socket"} <= progress.sent.keys()
    answers = progress.results
    behind_the_sign = answers["result 0"] + answers["result 400"]
    assert answers["result 0"] >= 10
    assert behind_the_sign > 3 * answers["result 401"]


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_a_run_with_analytics_finds_nothing() -> None:
    assert (await fuzzed(6000, with_analytics=True)).findings == []


@pytest.mark.long
async def test_an_answer_of_500_and_its_traceback_are_found_saved_and_replayed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("planted")

    with monkeypatch.context() as planted:
        planted.setattr(StringTags, "add", broken)
        progress = await fuzzed(150)
        *found, control = progress.findings
        assert found
        assert all("planted" in finding.problem for finding in found)
        assert control.problem.startswith("the service does not work: its tags")
        file = findings.write(tmp_path, found[0])
        assert findings.read(file) == found[0]
        again = await replay(findings.read(file), with_analytics=False)
        assert "planted" in again[0].problem
    assert await replay(findings.read(file), with_analytics=False) == []


@pytest.mark.long
async def test_cpu_time_above_the_bound_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter(range(10**6))
    monkeypatch.setattr(run, "cpu_s", lambda: 2.0 * next(spent))
    progress = await fuzzed(40)
    assert all("2.0 s of CPU" in finding.problem for finding in progress.findings)
    assert sum(len(finding.cases) for finding in progress.findings) == 40


@pytest.mark.long
async def test_an_error_that_is_only_logged_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def logging_add(*_: object) -> list[object]:
        logger.error("planted")
        return []

    monkeypatch.setattr(StringTags, "add", logging_add)
    *found, _control = (await fuzzed(150)).findings
    assert found
    assert all("logged: " in finding.problem and "planted" in finding.problem for finding in found)


def test_the_seed_and_the_number_determine_a_case() -> None:
    cases = [generator().case(number) for number in range(500)]
    assert cases == [generator().case(number) for number in range(500)]
    used = generator()
    assert cases == [used.case(number) for number in range(500)]
    assert cases != [generator(1).case(number) for number in range(500)]
    kinds = {type(case.payload) for case in cases}
    assert kinds == {Call, Pipeline, Head, WireFrames}
    for case in cases:
        found = findings.finding("p", [case], reproduced=True)
        assert msgspec.json.decode(msgspec.json.encode(found), type=Finding) == found


def test_every_way_to_send_a_request_occurs() -> None:
    payloads = [generator().case(number).payload for number in range(3000)]
    calls = [payload for payload in payloads if isinstance(payload, Call)]
    keyed = [call for call in calls if any(name == b"idempotency-key" for name, _ in call.headers)]
    assert {call.times for call in keyed} >= {1, 2, 5}
    assert {call.pieces for call in calls} >= {1, 2, 2000}
    assert any(call.leaves for call in calls)
    assert any(len(payload.calls) > 5 for payload in payloads if isinstance(payload, Pipeline))
    frames = [payload for payload in payloads if isinstance(payload, WireFrames)]
    assert {payload.is_whole for payload in frames} == {True, False}
    assert any(payload.pieces > 1 for payload in frames)
    assert {payload.messages for payload in frames} >= {1, 2, 6, 20}
    sizes = sorted(len(call.body) for call in calls)
    assert sizes[len(sizes) // 2] < 1000 < 100_000 < sizes[-1]


def test_signs_are_those_of_the_reference_where_the_service_accepts_the_body() -> None:
    accepted = 0
    for number in range(300):
        payload = generator().case(number).payload
        if isinstance(payload, Call) and payload.body.startswith(b"{"):
            try:
                text = canonical_text(payload.body)
            except InputError:
                continue
            accepted += 1
            assert text == reference_text(payload.body), payload
    assert accepted > 100


def test_what_is_wrong_with_an_answer_is_found() -> None:
    results: Counter[str] = Counter()
    assert checked(results, 200, b'{"result":0}', "POST").problem is None
    for body in (b'{"type":"error","code":500}', b'{"result":0,"details":[{"result":500}]}', b"<html>"):
        assert checked(results, 200, body, "POST").problem
    first, other, refused = (Answer(b'{"result":0,"id":1}'), Answer(b'{"result":0,"id":2}'), Answer(b'{"result":400}'))
    assert repeated_problem([first, refused, first]) is None
    assert repeated_problem([first, other])
    assert pipeline_problem(results, b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 404 Not Found\r\n\r\n") is None
    assert pipeline_problem(results, b'HTTP/1.1 200 OK\r\n\r\n{"result":500}')


def test_a_body_is_signed_with_the_real_names() -> None:
    names = Names({"7000000001": "1234567890"}, {"7000000001": "secret"})
    call = Call("android", "POST", "/push", [], _BODY.encode(), ["7000000001"])
    signed = names.signed(call)
    assert b'"appkey":"1234567890"' in signed
    body = _BODY.replace("7000000001", "1234567890").encode()
    assert signed.startswith(b'{"sign":"' + reference_sign(body, "secret").encode() + b'",')
    assert names.signed(Call("android", "POST", "/push", [], b"[1]", [])) == b"[1]"
    assert names.signed(Call("android", "POST", "/push", [], b"{}", [])).endswith(b'"}')


def test_repeated_keys_and_text_that_is_no_json_are_written() -> None:
    assert written(parsed('{"a":1,"a":[{"b":"é"}]}')) == '{"a":1,"a":[{"b":"é"}]}'
    cases = [generator().case(number) for number in range(1000)]
    text = b"\n".join(case.payload.body for case in cases if isinstance(case.payload, Call))
    for part in (b'"period":600,"token"', b"\\ud800", b"1e999", b"NaN", b"\\u0000", b"[[[[[", b"\xff"):
        assert part in text, part
    assert re.search(rb'"(MESSAGE|messages|Message|TOKEN|tokens|appkeys)"', text)


def test_the_command_prints_the_seed_and_replays_a_file(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--replay", str(tmp_path / "none.json")])
    assert result.exit_code == 2
    assert "does not exist" in result.output
