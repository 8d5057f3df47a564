"""Endpoint URLs and addresses by which a device would make the service call what it must not."""

PRIVATE_ADDRESSES = (
    *("0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.100.100.200", "127.0.0.1", "127.8.8.8"),
    *("169.254.0.1", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.0.192", "192.0.2.1"),
    *("192.88.99.1", "192.168.0.1", "198.18.0.1", "198.51.100.1", "203.0.113.1", "224.0.0.1", "239.1.1.1"),
    *("240.0.0.1", "255.255.255.255", "168.63.129.16"),
    *("::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "64:ff9b::127.0.0.1"),
    *("64:ff9b::a00:1", "64:ff9b:1::1", "2002:7f00:1::1", "2002:a00:1::", "2002:c0a8:101::1", "2001::1"),
    *("2001:0:7f00:1::", "2001:db8::1", "3fff::1", "fc00::1", "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "fec0::1"),
    *("ff02::1", "ff0e::1", "100::1", "5f00::1", "4000::1", "2606:4700::1%eth0"),
    *("", "localhost", "127.1", "0x7f.1", "2130706433", "1.2.3.4.5", "::ffff:0:0:0:0"),
)

_ADDRESSES_IN_URLS = (
    *("127.0.0.1", "127.1", "127.0.1", "0", "0.0.0.0", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1"),
    *("017700000001", "127.0.0.1.", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "2852039166"),
    *("0xa9fea9fe", "0xa9.0xfe.0xa9.0xfe", "169.254.43518", "100.100.100.200", "168.63.129.16", "255.255.255.255"),
    *(
        "142.250.1.1",
        "8.8.8.8",
        "1.1.1.1",
        "0x08080808",
        "08.8.8.8",
        "256.256.256.256",
        "1.2.3.4.5",
        "0x",
        "127.0.0.0x1",
    ),
    *("[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[::127.0.0.1]", "[0:0:0:0:0:0:0:1]", "[fe80::1]"),
    *("[fe80::1%25eth0]", "[fe80::1%eth0]", "[fd00:ec2::254]", "[64:ff9b::7f00:1]", "[64:ff9b::169.254.169.254]"),
    *(
        "[2002:7f00:1::]",
        "[2002:a9fe:a9fe::1]",
        "[2001::1]",
        "[ff02::1]",
        "[2606:4700::1]",
        "[::1",
        "::1]",
        "[]",
        "[1]",
    ),
    *("[v1.x]", "[::ffff:8.8.8.8]"),
)
_NAMES = (
    *("localhost", "localhost.", "LOCALHOST", "localhost.localdomain", "ip6-localhost", "metadata", "kubernetes"),
    *("metadata.google.internal", "metadata.google.internal.", "instance-data", "host.docker.internal", "router.lan"),
    *("printer.local", "127.0.0.1.nip.io", "169-254-169-254.nip.io", "localtest.me", "lvh.me", "rebind.example.com"),
    *("attacker.example.com", "fcm.googleapis.com.attacker.example", "fcm.googleapis.com.", "xfcm.googleapis.com"),
    *("fcm.googleapis.co", "googleapis.com", "www.googleapis.com", "notify.windows.com", "notify.windows.com."),
    *("x.notify.windows.com.evil.example", "evilnotify.windows.com", "push.apple.com", "api.push.apple.com"),
    *("push.services.mozilla.com", "updates.push.services.mozilla.com.evil.example", "*.notify.windows.com", "*"),
    *("fcm_googleapis.com", "-fcm.googleapis.com", "fcm..googleapis.com", ".fcm.googleapis.com", "fcm-.googleapis.com"),
    *(
        "fcm.googleapis.com%00.evil.example",
        "fcm.googleapis.com%2eevil.example",
        "fcm。googleapis。com",
        "ｆcm.googleapis.com",
    ),
    *("①②⑦.⓪.⓪.①", "127。0。0。1", "xn--fcm-googleapis.com", "a" * 64 + ".example", "a." * 130 + "example"),
)
_KNOWN = "fcm.googleapis.com"
_WHOLE = (
    *(
        "",
        " ",
        "https:",
        "https://",
        "https:///",
        "https:///SECRET",
        "https:/fcm.googleapis.com/SECRET",
        "//fcm.googleapis.com/SECRET",
    ),
    *("fcm.googleapis.com/SECRET", "/SECRET", "?", "#", "about:blank", "data:text/plain,x", "javascript:alert(1)"),
    *(
        f"{scheme}://{_KNOWN}/SECRET"
        for scheme in ("http", "ftp", "file", "gopher", "ws", "wss", "ldap", "dict", "HTTPS", "h")
    ),
    *(
        "file:///etc/passwd",
        "gopher://127.0.0.1:6379/_FLUSHALL",
        "unix:///var/run/docker.sock",
        "jar:https://a/!/SECRET",
    ),
    *(f"https://{user}@{_KNOWN}/SECRET" for user in ("user", "user:password", "", ":", "127.0.0.1", "a%40b", "@")),
    *(f"https://{_KNOWN}@{host}/SECRET" for host in ("127.0.0.1", "localhost", "attacker.example", "[::1]")),
    *(f"https://{_KNOWN}{mark}@127.0.0.1/SECRET" for mark in ("#", "?", "\\", "%23", ";", ":443")),
    *(
        f"https://{_KNOWN}:{port}/SECRET"
        for port in ("80", "22", "8443", "0", "0443", "00443", "65536", "99999", "-1", "", "x")
    ),
    *(f"https://{_KNOWN}:{port}/SECRET" for port in ("443:80", "443@127.0.0.1", "4 43", "443\t", "٤٤٣")),
    *(
        f"https://{_KNOWN}{end}"
        for end in ("", "?x", "#x", "/x#y", "\\x", "/x\\y", "/ x", "/x y", "/\r\nHost: evil", "/x\n")
    ),
    *(
        f"https://{_KNOWN}{end}"
        for end in ("/x\x00", "/x\x7f", "/ü", '/"', "/<x>", "/{x}", "/|", "/^", "/`", "\t/SECRET", "\n/SECRET")
    ),
    *(f"{start}https://{_KNOWN}/SECRET" for start in (" ", "\n", "\t", "\x00", "\ufeff", "url:", "view-source:")),
    *(f"https:{mark}{_KNOWN}/SECRET" for mark in ("\\\\", "/\\", "///", "////", "//\t", "//\n", "// ", "//%2f")),
    f"https://{_KNOWN}/" + "x" * 2048,
)


def hostile_endpoints() -> list[str]:
    """Return URLs of which none may be called without the operator's naming it."""
    hosts = [f"https://{host}/SECRET" for host in (*_ADDRESSES_IN_URLS, *_NAMES)]
    with_ports = [
        f"http://{host}:{port}/SECRET" for host in ("127.0.0.1", "localhost", "[::1]") for port in (80, 6379, 8500)
    ]
    return [*hosts, *with_ports, *_WHOLE]
