"""Reports what this machine lacks to run Carillon and its tests, the purpose of each, and the command that fixes it.

`make doctor` runs it, with `--json` for programs. Exit code 1: `make run` would not work. It is written for Python 3.6,
because an old Python is one of the things it finds.
"""

import contextlib
import glob
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from setup.python_version import problem

ROOT = Path(__file__).resolve().parent.parent
RUN, TEST = "make run", "make test"
_MANY_FILES = 65536
_ENOUGH_GB = 3
PORTS = {
    "CARILLON_ANDROID_PORT": 8001,
    "CARILLON_CONSOLE_PORT": 8080,
    "CARILLON_IOS_PORT": 8200,
    "CARILLON_V2_PORT": 8300,
    "CARILLON_GATEWAY_PORT": 8400,
}
_PACKAGES = {
    "apt-get": {
        "java": "openjdk-17-jdk-headless",
        "mvn": "maven",
        "promtool": "prometheus",
        "php": "php-cli",
        "aapt2": "aapt",
    },
    "dnf": {"java": "java-17-openjdk-headless", "mvn": "maven", "promtool": "prometheus", "php": "php-cli"},
    "brew": {
        "java": "openjdk@17",
        "mvn": "maven",
        "npm": "node",
        "chromium": "--cask chromium",
        "promtool": "prometheus",
    },
}
"""By package manager: the packages that have another name than their program."""

OF_ANDROID = ("aapt2", "zipalign", "apksigner")
"""The programs that take the place of the Android SDK."""

_SHOWN_CHARS = 200
_LISTENING = "0A"
"""The state of a listening socket in Linux' tables of sockets."""

_OF_ADMINISTRATORS = ("/usr/sbin", "/usr/local/sbin")
"""Folders in which Debian has servers such as HAProxy, and which are not on the path of every user."""


class Check(NamedTuple):
    """A requirement and its check. `needed_for`: the make target, or a part of it. `fix`: a command or an advice.

    `program`: that which is missing, for the requirements that are programs.
    """

    name: str
    is_ok: bool
    found: str
    needed_for: str
    fix: str
    program: str = ""


def checks(env: Dict[str, str]) -> List[Check]:
    """Make all checks; the most important come first."""
    return [
        python_check(),
        _free_disk(),
        *(_port(name, env) for name in PORTS),
        _open_files(),
        *checks_of_tests(),
    ]


def checks_of_tests() -> List[Check]:
    """Check the programs that the tests start."""
    return [
        _version("Java 17", ["java", "-version"], 17, TEST + " (a Kafka broker, the Kotlin SDK)", _install("java")),
        _program("Maven", ["mvn"], TEST + " (the broker's files, the Kotlin SDK)", _install("mvn")),
        _version("Node.js 20", ["node", "--version"], 20, TEST + " (the JavaScript SDK)", _NODE),
        _program("npx", ["npx"], TEST + " (buf, which checks protos/)", _NODE),
        _program(
            "a browser",
            ["chromium", "chromium-browser", "google-chrome"],
            TEST + " (the JavaScript SDK and the console in a page)",
            _install("chromium"),
        ),
        _program("haproxy", ["haproxy"], TEST + " (the proxy's settings)", _install("haproxy")),
        _program("promtool", ["promtool"], TEST + " (the alert rules)", _install("promtool")),
        _program("curl", ["curl"], TEST + " (the first push of the README)", _install("curl")),
        _program("openssl", ["openssl"], TEST + " (certificates and proofs)", _install("openssl")),
        _program("PHP", ["php"], TEST + " (the examples in PHP)", _install("php")),
    ]


def checks_of_long_tests() -> List[Check]:
    """Check the further programs that `make test-long` starts: the size of Android's sample app is that of its APK."""
    needed_for = TEST + "-long (the APK of the sample app for Android)"
    return [_program(name, [name], needed_for, _install(name)) for name in OF_ANDROID]


def report(found: Sequence[Check]) -> List[str]:
    """Return the lines of the report for people."""
    lines = []
    for check in found:
        lines.append("{:8} {:22} {}".format("ok" if check.is_ok else "MISSING", check.name, check.found).rstrip())
        if not check.is_ok:
            lines += ["         needed for {}".format(check.needed_for), "         fix: {}".format(check.fix)]
    missing = [check for check in found if not check.is_ok]
    for target in (RUN, TEST):
        count = sum(1 for check in missing if is_needed(check, target))
        lines.append("{}: {}".format(target, "ready" if not count else "{} missing".format(count)))
    return lines


def is_needed(check: Check, target: str) -> bool:
    """Return whether a make target needs the requirement; tests need all that the service needs, except its ports."""
    return check.needed_for.startswith(target) or (target == TEST and check.needed_for == RUN)


def main(arguments: Sequence[str]) -> int:
    found = checks(_settings())
    if "--json" in arguments:
        ready = {target: all(one.is_ok for one in found if is_needed(one, target)) for target in (RUN, TEST)}
        print(json.dumps({"ready": ready, "checks": [dict(one._asdict()) for one in found]}))
    else:
        print("\n".join(report(found)))
    return 0 if all(check.is_ok for check in found if check.needed_for.startswith(RUN)) else 1


def _settings() -> Dict[str, str]:
    """Return the environment, completed by the plain lines of the .env file."""
    env = {}  # type: Dict[str, str]
    file = ROOT / ".env"
    if file.is_file():
        lines = re.findall(r"^(?:export )?(\w+)=(.*)$", file.read_text(encoding="utf-8", errors="replace"), re.M)
        env.update((name, value.strip().strip("\"'")) for name, value in lines)
    env.update(os.environ)
    return env


def python_check() -> Check:
    wrong = problem(tuple(sys.version_info[:3]), find_spec("ensurepip") is not None)
    version = ".".join(str(part) for part in sys.version_info[:3])
    return Check("Python 3.11 to 3.14", not wrong, "{} ({})".format(version, sys.executable), RUN, wrong)


def _free_disk() -> Check:
    free_gb = shutil.disk_usage(str(ROOT)).free / 1e9
    fix = "du -xsh ~/.cache/* | sort -h shows what could go; or clone to another disk"
    found = "{:.1f} GB free in {}".format(free_gb, ROOT)
    return Check("disk, {} GB".format(_ENOUGH_GB), free_gb >= _ENOUGH_GB, found, RUN, fix)


def _port(name: str, env: Dict[str, str]) -> Check:
    """Check that Carillon can listen at the port of this setting, or does so already."""
    text = env.get(name, str(PORTS[name]))
    host = env.get("CARILLON_HOST", "127.0.0.1")
    fix = "ss -ltnp 'sport = :{0}' shows the process that uses it; to use another port: {1}={2} make run".format(
        text, name, PORTS[name] + 10000
    )
    error = _bind_error(host, int(text)) if text.isdigit() else "not a number"
    user, command = _listening_process(int(text)) if text.isdigit() and error else (0, [])
    if any(os.path.basename(word) == "carillon" for word in command):
        return Check("port {}".format(text), True, "Carillon runs here, process {}".format(user), RUN, "")
    if command:
        error += ", by process {}: {}".format(user, " ".join(command)[:_SHOWN_CHARS])
    return Check("port {}".format(text), not error, error or "free", RUN + " (" + name + ")", fix)


def installed(*names: str, path: Optional[str] = None) -> Optional[str]:
    """Return the path of the first of these programs that is installed; `path`: where, or else on the user's path."""
    folders = (os.environ.get("PATH", "") if path is None else path).split(os.pathsep)
    if "/usr/bin" in folders:
        folders += _OF_ADMINISTRATORS
    found = (shutil.which(name, path=os.pathsep.join(folders)) for name in names)
    return next((each for each in found if each), None)


def _listening_process(port: int) -> Tuple[int, List[str]]:
    """Return the id and the command line of a process that listens at the port; (0, []) if the system shows none.

    Linux shows the processes of other users to root alone.
    """
    inodes = set()
    for table in glob.glob("/proc/net/tcp*"):
        with open(table) as sockets:
            rows = [row.split() for row in sockets.readlines()[1:]]
        inodes |= {row[9] for row in rows if row[3] == _LISTENING and int(row[1].split(":")[1], 16) == port}
    for file in glob.glob("/proc/[0-9]*/fd/*") if inodes else []:
        with contextlib.suppress(OSError):
            if os.readlink(file)[len("socket:[") : -1] in inodes:
                process = file.split("/")[2]
                words = Path("/proc", process, "cmdline").read_bytes().decode(errors="replace").split("\0")
                return int(process), [word for word in words if word]
    return 0, []


def _bind_error(host: str, port: int) -> str:
    """Return why nothing can listen at this address; "" if something can."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _open_files() -> Check:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    is_ok = hard == resource.RLIM_INFINITY or hard >= _MANY_FILES
    found = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    fix = "echo '* hard nofile 1048576' > /etc/security/limits.d/carillon.conf (as root), then log in again"
    needed_for = "many devices: the gateway needs an open file for each"
    return Check("open files, {}".format(_MANY_FILES), is_ok, "hard limit " + found, needed_for, fix)


def _program(name: str, programs: Sequence[str], needed_for: str, fix: str) -> Check:
    """Check that one of these programs is installed."""
    found = installed(*programs)
    return Check(name, bool(found), found or "", needed_for, fix, programs[0])


def _version(name: str, command: Sequence[str], least: int, needed_for: str, fix: str) -> Check:
    """Check that the first number that the command prints is at least `least`."""
    number = _printed_number(command)
    found = "" if number is None else "{} {}".format(command[0], number)
    return Check(name + " or newer", number is not None and number >= least, found, needed_for, fix, command[0])


def _printed_number(command: Sequence[str]) -> Optional[int]:
    try:
        ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(rb"(\d+)\.", ended.stdout)
    return int(found.group(1)) if found and ended.returncode == 0 else None


def manager() -> str:
    """Return the package manager of this machine, apt-get where none is found."""
    return next((name for name in _PACKAGES if shutil.which(name)), "apt-get")


def package(program: str) -> str:
    """Return the package that brings a program, as the package manager of this machine names it."""
    return _PACKAGES[manager()].get(program, program)


def _install(program: str) -> str:
    """Return the command that installs a program with the package manager of this machine."""
    return "{} install {}".format(manager(), package(program))


_NODE = "{} && npm install --global node@22".format(_install("npm"))

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
