"""What the simulators of both generations of Huawei's Push Kit share: codes, and tokens that are refused alone."""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence

import msgspec

from services.hms_simulator.requests import (
    ALL_TOKENS,
    JWT_EXPIRED,
    NOT_AUTHENTICATED,
    SOME_TOKENS,
    SUCCESS,
    TOKEN_EXPIRED,
)
from services.push_simulator.http1 import SimulatorReply
from services.push_simulator.http1_service import Http1SimulatedService, PushRefusedError, Sent, json_reply


class PushKitSimulator(Http1SimulatedService[Sent]):
    """Service that simulates one generation of Huawei's Push Kit. What is no token at all is refused alone."""

    codes = re.compile("[0-9]{8}")

    @abstractmethod
    def told(self, valid: int, refused: Mapping[str, str]) -> str:
        """Return what an answer says of tokens that are refused, by token, beside so many valid ones."""

    def answer(self, valid: Sequence[str], refused: Mapping[str, str]) -> SimulatorReply:
        if not valid:
            raise PushRefusedError(ALL_TOKENS, self.told(0, refused))
        if refused:
            return _answered(200, SOME_TOKENS, self.told(len(valid), refused))
        return _answered(200, SUCCESS, "Success")

    def refusal(self, refused: PushRefusedError) -> SimulatorReply:
        is_of_token = refused.code in (NOT_AUTHENTICATED, TOKEN_EXPIRED, JWT_EXPIRED)
        return _answered(401 if is_of_token else 400, refused.code, refused.message)


def _answered(status: int, code: str, message: str) -> SimulatorReply:
    words = {"code": code, "msg": message, "requestId": "157440955549500001002006"}
    return json_reply(status, msgspec.json.encode(words))
