"""Requests about devices, with their limits and descriptions. They have no fields beside those of authentication."""

from typing import Annotated

import msgspec

from edge.core.parsing.fields import Sign, described
from edge.v2.apps import SIGN_BY_LIST, IosApps


class InvalidTokensRequest(msgspec.Struct, frozen=True):
    """POST /v2/errortoken."""

    appkey: Annotated[IosApps, described("An app or a list of apps.")]
    sign: Annotated[Sign, SIGN_BY_LIST]
