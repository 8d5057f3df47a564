"""The shape of addresses and of subscription keys; what refuses one never repeats it."""

from base64 import urlsafe_b64encode

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from protos.registry.v1.apps_pb2 import CHANNEL_FCM, CHANNEL_WEBPUSH, Channel
from services.domain.addresses import (
    CHANNELS,
    MAX_ADDRESS_LENGTH,
    address_hash,
    channel_name,
    check_address,
    fingerprint,
    named_channel,
    subscription_keys,
)
from services.domain.device_protocol.frames import SetAddressRequest, decode_frame
from services.errors import InputError
from testkit.subscriptions import subscription_keys_as_text

SECRET = "WyJzZWNyZXQ"
KEYS = subscription_keys_as_text()


def test_channels_have_names() -> None:
    assert list(CHANNELS) == ["webpush", "fcm", "hms", "harmony", "honor", "xiaomi", "oppo", "vivo"]
    assert [channel_name(each) for each in (CHANNEL_WEBPUSH, 77)] == ["webpush", "77"]
    assert named_channel("fcm") == CHANNEL_FCM
    with pytest.raises(ValueError, match="must be one of webpush, fcm"):
        named_channel("unspecified")


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://fcm.googleapis.com/fcm/send/abc:APA91b",
        "https://updates.push.services.mozilla.com/wpush/v2/gAAA",
        "https://web.push.apple.com/QGuQyavXutnMH",
        "https://wns2-by3p.notify.windows.com/w/?token=BQYAAA%3d",
        "https://ntfy.example.org:8443/upAbc?up=1",
        "https://[2001:db8::1]/x",
        "HTTPS://push.example.org/x",
        "http://127.0.0.1:24001/push/1",
    ],
)
def test_endpoints_of_push_services_are_accepted(endpoint: str) -> None:
    check_address(CHANNEL_WEBPUSH, endpoint)


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("", "1 to 2048 characters"),
        (f"https://h/{SECRET * 200}", "1 to 2048 characters, but it has 2210"),
        (f"https://push.example.org/{SECRET} ", "printable ASCII"),
        (f"https://push.example.org/{SECRET}\n", "printable ASCII"),
        (f"https://推.example.org/{SECRET}", "printable ASCII"),
        (f"ftp://push.example.org/{SECRET}", "https:// URL"),
        (f"//push.example.org/{SECRET}", "https:// URL"),
        (f"https://user:{SECRET}@push.example.org/", "without user name"),
        (f"https://push.example.org/#{SECRET}", "fragment"),
        (f"https:///{SECRET}", "https:// URL"),
        (f"https://push.example.org\\@10.0.0.1/{SECRET}", "https:// URL"),
        (f"https://push.example.org:99999/{SECRET}", "port"),
        (f"https://push.example.org:0/{SECRET}", "port"),
        (f"http://push.example.org/{SECRET}", "http:// is only for a push service of your own"),
        (f"javascript:{SECRET}", "https:// URL"),
    ],
)
def test_what_is_no_endpoint_is_refused_without_repeating_it(endpoint: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        check_address(CHANNEL_WEBPUSH, endpoint)
    assert SECRET not in str(refused.value)


def test_addresses_of_vendors_are_any_printable_text() -> None:
    check_address(CHANNEL_FCM, "x" * MAX_ADDRESS_LENGTH)
    with pytest.raises(ValueError, match="2049"):
        check_address(CHANNEL_FCM, "x" * (MAX_ADDRESS_LENGTH + 1))
    with pytest.raises(ValueError, match="printable"):
        check_address(CHANNEL_FCM, "two words")


@given(st.integers(min_value=1, max_value=2**128))
def test_every_public_key_is_accepted_with_and_without_padding(number: int) -> None:
    keys = subscription_keys_as_text(number % (2**120) + 1)
    found = subscription_keys(**keys)
    assert (found.p256dh[0], len(found.p256dh), len(found.auth)) == (4, 65, 16)
    padded = {name: text + "=" * (-len(text) % 4) for name, text in keys.items()}
    assert subscription_keys(**padded) == found


def off_curve() -> str:
    numbers = ec.derive_private_key(7, ec.SECP256R1()).public_key().public_numbers()
    return urlsafe_b64encode(b"\x04" + numbers.x.to_bytes(32) + (numbers.y ^ 1).to_bytes(32)).decode()


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"p256dh": off_curve()}, "keys.p256dh must be an uncompressed point of the curve P-256"),
        ({"p256dh": urlsafe_b64encode(b"\x04" + b"\xff" * 64).decode()}, "point of the curve"),
        ({"p256dh": urlsafe_b64encode(bytes(65)).decode()}, "point of the curve"),
        ({"p256dh": urlsafe_b64encode(b"\x02" + bytes(32)).decode()}, "65 bytes in base64url, but it has 33"),
        ({"p256dh": KEYS["p256dh"][:-2]}, "65 bytes in base64url"),
        ({"p256dh": "+" + KEYS["p256dh"][1:]}, "letters A-Z a-z 0-9 - _"),
        ({"p256dh": "A" * 1_000_000}, "65 bytes"),
        ({"auth": "AAAA"}, "keys.auth must be 16 bytes in base64url, but it has 3"),
        ({"auth": "A"}, "cut off"),
    ],
)
def test_wrong_keys_are_refused(keys: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        subscription_keys(**(KEYS | keys))


def test_the_text_of_an_address_is_in_no_refusal_of_a_frame() -> None:
    frame = b'{"type":"set_address","id":1,"channel":"webpush","address":"ftp://%s","keys":{"p256dh":"%s","auth":"x"}}'
    for payload in (
        frame % (SECRET.encode(), SECRET.encode()),
        frame.replace(b"ftp", b"https") % (SECRET.encode(), SECRET.encode()),
    ):
        with pytest.raises(InputError) as refused:
            decode_frame(payload)
        assert SECRET not in str(refused.value)
        assert str(refused.value).startswith("input error: ")


def test_a_whole_frame_with_the_longest_address_fits() -> None:
    frame = b'{"type":"set_address","id":1,"channel":"fcm","address":"%s"}' % (b"x" * MAX_ADDRESS_LENGTH)
    decoded = decode_frame(frame)
    assert isinstance(decoded, SetAddressRequest)
    assert len(decoded.address) == MAX_ADDRESS_LENGTH


def test_a_hash_is_of_a_channel_and_an_address() -> None:
    hashes = {address_hash(channel, text) for channel in Channel.values() for text in ("a", "b", "1 a")}
    assert len(hashes) == 3 * len(Channel.values())
    assert {len(each) for each in hashes} == {16}
    assert fingerprint(address_hash(CHANNEL_FCM, "a")) == address_hash(CHANNEL_FCM, "a").hex()[:8]
