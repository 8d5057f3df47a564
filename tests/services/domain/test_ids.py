"""Ids other than those of messages: small enough for clients that store them, and different."""

from services.domain import ids


def test_appkeys_fit_a_32_bit_int_and_secrets_are_letters_and_digits() -> None:
    appkeys = {ids.new_appkey() for _ in range(500)}
    assert all(len(appkey) == 10 and appkey.isdecimal() and int(appkey) < 2**31 for appkey in appkeys)
    assert len(appkeys) > 490
    secret, token = ids.new_secret(), ids.new_token()
    assert (len(secret), secret.isalnum(), secret.isascii()) == (64, True, True)
    assert len(bytes.fromhex(token)) == 16
    assert (len(ids.event_id()), ids.event_id() != ids.event_id()) == (16, True)


def test_event_ids_differ_within_and_between_writers() -> None:
    one, other = ids.EventIds(), ids.EventIds()
    taken = [each.take() for each in (one, other) for _ in range(300)]
    assert ({len(event_id) for event_id in taken}, len(set(taken))) == ({16}, 600)
