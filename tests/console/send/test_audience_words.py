"""What a push is for, in words: the names of a short list, the length of a long one."""

import pytest

from console.shell.languages import english
from protos.push.v1.push_pb2 import Aliases, Audience, Everyone, Tokens


@pytest.mark.parametrize(
    ("audience", "words"),
    [
        (Audience(everyone=Everyone()), "all devices"),
        (Audience(aliases=Aliases(aliases=["amy", "bo"])), "alias amy, alias bo"),
        (Audience(aliases=Aliases(aliases=["a"] * 4)), "the most recently active device of each of 4 aliases"),
        (Audience(tokens=Tokens(tokens=["t1"])), "token t1"),
        (Audience(tokens=Tokens(tokens=["t"] * 1000)), "1,000 tokens"),
    ],
)
def test_a_short_list_is_told_by_its_names(audience: Audience, words: str) -> None:
    assert english().audience.of_push(audience) == words
