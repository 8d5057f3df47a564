"""Which new passwords are refused, and with what words."""

import gzip
from importlib.resources import files

import pytest

from protos.accounts.v1.service_pb2 import ChangePasswordRequest, CreateUserRequest, UseLinkRequest
from services.accounts.log_ins.passwords import check_new_password
from services.errors import InputError
from tests.services.accounts.conftest import FRONT_END, OPERATOR, PASSWORD, AccountsHarness, origin_of

GOOD = [
    PASSWORD,
    "another password",
    "correcthorsebatterystaple",
    "this is a phrase this is a phrase",
    "password-x-monkey",
    "dragon8301947562",
    "7uW!kd9#Lm2q",
    "床前明月光疑是地上霜举头",
    "annabelle's café",
]


@pytest.mark.parametrize("password", GOOD)
def test_passwords_that_nobody_guesses_first_are_accepted(password: str) -> None:
    check_new_password(password, ["alice", "Alice Liddell", "an", "News"])


@pytest.mark.parametrize(
    ("password", "words"),
    [
        ("short", "12 to 256 characters"),
        ("long" * 65, "12 to 256 characters"),
        ("aaaaaaaaaaaa", "a repetition or a sequence"),
        ("abcabcabcabc", "a repetition or a sequence"),
        ("abcabcabcabd", "a repetition or a sequence"),
        ("123456789012", "a repetition or a sequence"),
        ("abcdefghijkl", "a repetition or a sequence"),
        ("lkjhgfdsapoi", "a repetition or a sequence"),
        ("qwertyuiopas", "a repetition or a sequence"),
        ("112233445566", "a repetition or a sequence"),
        ("aaabbbcccddd", "a repetition or a sequence"),
        ("horsehorsehorse", "a repetition or a sequence"),
        ("我的密码我的密码我的密码", "a repetition or a sequence"),
        ("1qaz2wsx3edc", "10,000 commonest"),
        ("1Q2W3E4R5T6Y", "10,000 commonest"),
        ("Password1234!", "10,000 commonest"),
        ("P@ssw0rd1234", "10,000 commonest"),
        ("sunshine2024!!", "10,000 commonest"),
        ("!!!iloveyou!!!", "10,000 commonest"),
        ("iloveyou2024!x", "10,000 commonest"),
        ("monkeymonkey1", "10,000 commonest"),
        ("ｐａｓｓｗｏｒｄ１２３４", "10,000 commonest"),
        ("alice in town", "a name that others know: alice"),
        ("4L1CE in town", "a name that others know: alice"),
        ("my liddell 1865", "a name that others know: liddell"),
        ("aliceliddell x", "a name that others know: alice"),
        ("Carillon rings!", "a name that others know: carillon"),
        ("c4r1ll0n-rings", "a name that others know: carillon"),
        ("good news today", "a name that others know: news"),
    ],
)
def test_what_others_guess_first_is_refused_with_the_reason(password: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_new_password(password, ["alice", "Alice Liddell", "News"])


def test_each_of_the_commonest_passwords_is_refused_also_where_it_is_repeated_or_padded() -> None:
    common = gzip.decompress(files("services.accounts.log_ins").joinpath("common_passwords.txt.gz").read_bytes())
    words = common.decode().split("\n")
    assert words[:4] == ["123456", "123456789", "qwerty", "password"]
    assert len(set(words)) > 10_000
    for word in words[:10_000]:
        for password in (word, word.upper(), word + word, word * 12, f"{word}2026", f"{word}!!!!!!!!!!!!", f"1{word}1"):
            if len(password) >= 12:
                with pytest.raises(InputError):
                    check_new_password(password[:256])


async def test_every_way_to_a_password_is_checked_with_the_names_of_the_user(harness: AccountsHarness) -> None:
    async with harness.running():
        create = CreateUserRequest(login="w.shakespeare@example.org", display_name="William", origin=OPERATOR)
        made = await harness.accounts.CreateUser(create)

        async def use(password: str) -> None:
            request = UseLinkRequest(link_token=made.link_token, new_password=password, origin=FRONT_END)
            await harness.log_ins.UseLink(request)

        for password in ("Shakespeare 1564", "sweet William!", "carillon-2026", "password1234", "abcabcabcabc"):
            with pytest.raises(InputError, match="a password must not"):
                await use(password)
        await use(PASSWORD)  # the link is still valid
        user = (await harness.log_in("w.shakespeare@example.org")).user
        await harness.team((user, "sender"), name="Stratford")
        for password in ("Shakespeare 1564", "stratford on avon", "password1234"):
            request = ChangePasswordRequest(password=PASSWORD, new_password=password, origin=origin_of(user))
            with pytest.raises(InputError, match="a password must not"):
                await harness.log_ins.ChangePassword(request)
