"""Users of a Kafka cluster and their ACLs on topics: the commands of Kafka's own tools, and the calls that do the same.

A user is known by a principal, such as `User:carillon-edge`. With SCRAM the cluster stores a salted hash of the
password; with TLS the principal is the subject of the client's certificate, and the cluster stores nothing.
"""

import asyncio
import hashlib
import os
import shlex
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import KafkaError, NoError, for_code
from aiokafka.protocol.admin import CreateAclsRequest_v1, DeleteAclsRequest_v1, DescribeAclsRequest_v1
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

from services.errors import ConflictError
from services.log.kafka.client import REFUSALS, RETRY_S, ClientSettings, unavailable
from services.log.kafka.security import read_password
from services.log.kafka.topics import Tools

_ITERATIONS = 8192
_SALT_BYTES = 16
_SHA_512 = 2
_ANY, _TOPIC, _LITERAL, _ALLOW = 1, 2, 3, 3
_OPERATIONS = {"Read": 3, "Write": 4, "Delete": 6, "Describe": 8, "DescribeConfigs": 10}
_NO_AUTHORIZER = 54
_Entry = tuple[int, str, int, str, str, int, int]
"""An ACL in Kafka's protocol: type and name of the resource, pattern, principal, host, operation, permission."""


class Acl(NamedTuple):
    """The permission of a principal to do an operation (Kafka's name of it) on a topic, from any host."""

    principal: str
    operation: str
    topic: str


def acl_commands(tools: Tools, acls: Iterable[Acl]) -> list[str]:
    """Return the commands that add the ACLs: for each principal one for all topics with the same operations."""
    operations: dict[tuple[str, str], list[str]] = defaultdict(list)
    for acl in acls:
        operations[acl.principal, acl.topic].append(acl.operation)
    topics: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (principal, topic), of_topic in operations.items():
        topics[principal, tuple(sorted(of_topic))].append(topic)
    return [
        " ".join(
            (
                f"kafka-acls.sh {tools.cluster} --add --allow-principal {shlex.quote(principal)}",
                *(f"--operation {operation}" for operation in names),
                *(f"--topic {topic}" for topic in of_principal),
            )
        )
        for (principal, names), of_principal in topics.items()
    ]


def user_command(tools: Tools, user: str, password_file: Path) -> str:
    """Return the command that makes the SCRAM user; the password stays in its file and shows on no command line."""
    return (
        f"sed 's/.*/SCRAM-SHA-512=iterations={_ITERATIONS},password=&/' {shlex.quote(str(password_file))}"
        f" | kafka-configs.sh {tools.cluster} --alter --entity-type users --entity-name {shlex.quote(user)}"
        " --add-config-file /dev/stdin"
    )


class AppliedAcls(NamedTuple):
    """How many ACLs were added and how many removed."""

    added: int
    removed: int


class KafkaUsers:
    """Makes users and sets their ACLs, as a user of the cluster who may do that."""

    def __init__(self, client: ClientSettings) -> None:
        self._client = client

    async def set_passwords(self, files: Mapping[str, Path]) -> None:
        """Make the SCRAM users, or give them the passwords in these files. ConflictError: the cluster refuses it."""
        upsertions: list[tuple[Any, ...]] = []
        for user, file in files.items():
            salt = os.urandom(_SALT_BYTES)
            salted = hashlib.pbkdf2_hmac("sha512", read_password(file).encode(), salt, _ITERATIONS)
            upsertions.append((user, _SHA_512, _ITERATIONS, salt, salted, {}))
        answer = await self._call(_AlterScram(upsertions))
        for user, code, message, _ in answer.results:
            _check(code, message, f"the user {user} cannot be made")

    async def set_acls(self, acls: Sequence[Acl]) -> AppliedAcls:
        """Give the principals exactly these ACLs: add the missing ones, then remove the principals' other ones.

        Return once the cluster answers with them, a moment after it has stored them. An ACL that denies something
        stays. ConflictError: the cluster has no authorizer, or refuses a change.
        """
        wanted = {(_TOPIC, acl.topic, _LITERAL, acl.principal, "*", _OPERATIONS[acl.operation], _ALLOW) for acl in acls}
        principals = {acl.principal for acl in acls}
        found = await self._allowed(principals)
        if missing := sorted(wanted - found):
            added = await self._call(_CreateAcls(missing))
            for code, message in added.creation_responses:
                _check(code, message, "an ACL cannot be added")
        if surplus := sorted(found - wanted):
            removed = await self._call(_DeleteAcls(surplus))
            for code, message, _ in removed.filter_responses:
                _check(code, message, "an ACL cannot be removed")
        while await self._allowed(principals) != wanted:
            await asyncio.sleep(RETRY_S)
        return AppliedAcls(len(missing), len(surplus))

    async def _allowed(self, principals: set[str]) -> set[_Entry]:
        """Return the ACLs that allow the principals something, on any resource."""
        answer = await self._call(_DescribeEveryAcl())
        _check(answer.error_code, answer.error_message, "the ACLs cannot be read")
        return {
            (kind, name, pattern, principal, host, operation, permission)
            for kind, name, pattern, acls in answer.resources
            for principal, host, operation, permission in acls
            if principal in principals and permission == _ALLOW
        }

    async def _call(self, request: Request[Any]) -> Any:
        """Return the answer of the first broker that answers; brokers pass changes on to the controller."""
        connection = {name: value for name, value in self._client.items() if name != "bootstrap_servers"}
        failed: KafkaError | OSError = KafkaError()
        for host, port, _ in collect_hosts(self._client["bootstrap_servers"]):
            try:
                connected = await create_conn(host, port, **connection)
                try:
                    return await connected.send(request)
                finally:
                    connected.close()
            except (KafkaError, OSError) as error:
                failed = error
        if isinstance(failed, REFUSALS):
            raise ConflictError(f"Kafka refuses the administrator's log-in: {failed}") from failed
        raise unavailable(failed, self._client) from failed


def _check(code: int, message: str | None, what: str) -> None:
    error = for_code(code)
    if error is NoError:
        return
    if code == _NO_AUTHORIZER:
        raise ConflictError("the cluster has no authorizer: set authorizer.class.name of its brokers and controllers")
    raise ConflictError(f"{what}: {message or error.message}")


class _DescribeEveryAcl(Request[DescribeAclsRequest_v1]):  # type: ignore[misc]
    API_KEY = DescribeAclsRequest_v1.API_KEY

    def build(self, request_struct_class: type[DescribeAclsRequest_v1]) -> DescribeAclsRequest_v1:
        return request_struct_class(_ANY, None, _ANY, None, None, _ANY, _ANY)


class _CreateAcls(Request[CreateAclsRequest_v1]):  # type: ignore[misc]
    API_KEY = CreateAclsRequest_v1.API_KEY

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self._entries = entries

    def build(self, request_struct_class: type[CreateAclsRequest_v1]) -> CreateAclsRequest_v1:
        return request_struct_class(self._entries)


class _DeleteAcls(Request[DeleteAclsRequest_v1]):  # type: ignore[misc]
    API_KEY = DeleteAclsRequest_v1.API_KEY

    def __init__(self, entries: Sequence[_Entry]) -> None:
        self._entries = entries

    def build(self, request_struct_class: type[DeleteAclsRequest_v1]) -> DeleteAclsRequest_v1:
        return request_struct_class(self._entries)


class _AlterScramResponse(Response):  # type: ignore[misc]
    API_KEY = 51
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "results",
            CompactArray(
                ("user", CompactString("utf-8")),
                ("error_code", Int16),
                ("error_message", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _AlterScramRequest(RequestStruct):  # type: ignore[misc]
    """AlterUserScramCredentials, which aiokafka does not have."""

    API_KEY = 51
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = _AlterScramResponse
    SCHEMA = Schema(
        (
            "deletions",
            CompactArray(("name", CompactString("utf-8")), ("mechanism", Int8), ("tags", TaggedFields)),
        ),
        (
            "upsertions",
            CompactArray(
                ("name", CompactString("utf-8")),
                ("mechanism", Int8),
                ("iterations", Int32),
                ("salt", CompactBytes),
                ("salted_password", CompactBytes),
                ("tags", TaggedFields),
            ),
        ),
        ("tags", TaggedFields),
    )


class _AlterScram(Request[_AlterScramRequest]):  # type: ignore[misc]
    API_KEY = 51

    def __init__(self, upsertions: Sequence[Any]) -> None:
        self._upsertions = upsertions

    def build(self, request_struct_class: type[_AlterScramRequest]) -> _AlterScramRequest:
        return request_struct_class([], self._upsertions, {})
