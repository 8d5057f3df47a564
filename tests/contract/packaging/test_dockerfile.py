"""The Dockerfile agrees with the commands, packages and files that exist."""

import re
import runpy
import shlex
import shutil

import msgspec
import pytest

from carillon.main import COMMANDS
from testkit.repository import ROOT
from tests.contract.packaging.container_files import ONCE, OURS, PROJECT, THEIRS, dockerfile, mounts
from tests.contract.packaging.test_locks import PYTHONS


def test_images_are_pinned() -> None:
    images = [service["image"] for service in THEIRS.values()]
    images += [arguments.split()[0] for step, arguments in dockerfile() if step == "FROM"]
    stages = {arguments.partition(" AS ")[2] for step, arguments in dockerfile() if step == "FROM"}
    images = [image for image in images if image not in stages]
    assert all(re.fullmatch(r"[\w./-]+:v?\d+\.\d+[\w.-]*@sha256:[0-9a-f]{64}", image) for image in images)
    assert len({image for image in images if image.startswith("python:")}) == 1


def test_pinning_asks_for_every_image_and_changes_nothing_but_digests() -> None:
    pinned = runpy.run_path(str(ROOT / "deploy/pin_images.py"))["pinned"]
    old, new = "sha256:" + "a" * 64, "sha256:" + "b" * 64
    asked = []

    def digest_of(image: str) -> str:
        asked.append(image)
        return new

    for file, count in (("docker-compose.yml", len(THEIRS)), ("Dockerfile", 3)):
        text = (ROOT / file).read_text()
        again, changes = pinned(text, digest_of)
        assert len(changes) == count
        assert re.sub(new, "", again) == re.sub(r"sha256:[0-9a-f]{64}", "", text)
    assert {*asked} == {service["image"].partition("@")[0] for service in THEIRS.values()} | {asked[-1]}
    assert pinned(f"FROM a/b:1.2@{new} AS x\n", digest_of) == (f"FROM a/b:1.2@{new} AS x\n", [])
    assert pinned("    image: a:1.2\n", digest_of) == (f"    image: a:1.2@{new}\n", [f"a:1.2: none -> {new}"])
    assert pinned(f"FROM a:1.2@{old}\n", digest_of)[1] == [f"a:1.2: {old} -> {new}"]


def image(target: str) -> list[tuple[str, str]]:
    """Return the steps that make an image: those of its stage, after those of the stages that it is from."""
    steps = dockerfile()
    starts = [index for index, (step, _) in enumerate(steps) if step == "FROM"]
    for start, end in zip(starts, [*starts[1:], len(steps)], strict=True):
        origin, _, name = steps[start][1].partition(" AS ")
        if name == target:
            is_from_stage = any(step == "FROM" and arguments.endswith(f" AS {origin}") for step, arguments in steps)
            return [*(image(origin) if is_from_stage else []), *steps[start:end]]
    raise AssertionError(f"the Dockerfile has no stage {target}")


def test_only_analytics_has_the_packages_of_the_embedded_store() -> None:
    """The image of each role in the compose file, and the lock files that are installed in it."""
    for name, service in OURS.items():
        target = service["build"]["target"]
        (copied,) = [arguments for step, arguments in image(target) if step == "COPY"]
        source, directory, _ = copied.split()
        stage = source.removeprefix("--from=")
        locks = {
            lock
            for step, arguments in image(stage)
            if step == "RUN" and f"{directory}/bin/pip" in arguments
            for lock in re.findall(r"requirements/(\w+)\.lock", arguments)
        }
        assert locks == ({"runtime", "embedded"} if name == "analytics" else {"runtime"})
        assert service["image"] == ("carillon-embedded" if name == "analytics" else "carillon")
    assert dockerfile()[-1] == ("CMD", '["up"]')


@pytest.mark.parametrize("target", ["roles", "embedded"])
def test_the_image_runs_the_command_as_a_user_that_owns_its_directories(target: str) -> None:
    final = image(target)
    made = next(arguments for step, arguments in final if step == "RUN")
    order = [step for step, _ in final]
    ((_, user),) = [step for step in final if step[0] == "USER"]
    assert user not in ("root", "0")
    assert re.search(rf"useradd .*\b{user}\b", made)
    assert order.index("USER") > max(index for index, step in enumerate(order) if step == "RUN")
    owned = re.search(rf"install -d -o {user} -g {user} -m 0700 (.*)", made)
    assert owned
    directories = {target for name in [*OURS, *ONCE] for target in mounts(name)}
    assert directories == set(owned[1].split())

    ((_, entry),) = [step for step in final if step[0] == "ENTRYPOINT"]
    (program,) = msgspec.json.decode(entry)
    assert program in PROJECT["project"]["scripts"]
    for command in (arguments for step, arguments in final if step == "CMD"):
        assert set(msgspec.json.decode(command)) <= set(COMMANDS)


def test_the_image_is_built_from_files_that_exist_and_are_sent_to_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert ignored[1] == "*"
    copied = {
        source
        for step, arguments in dockerfile()
        if step == "COPY" and "--from" not in arguments
        for source in arguments.split()[:-1]
    }
    assert copied == allowed
    assert all((ROOT / source).exists() for source in copied)
    packages = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {package.split("/")[0] for package in packages} <= copied
    assert PROJECT["tool"]["hatch"]["build"]["hooks"]["custom"]["path"].split("/")[0] in copied
    assert PROJECT["project"]["readme"] in copied
    artifacts = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["artifacts"]
    assert set(artifacts) <= {line.removeprefix("**/") for line in ignored}


def test_the_commands_of_the_dockerfile_exist() -> None:
    stages = {arguments.split(" AS ")[1] for step, arguments in dockerfile() if step == "FROM" and " AS " in arguments}
    environments: set[str] = set()
    for step, arguments in dockerfile():
        if step == "RUN":
            environments.update(re.findall(r"-m venv (\S+)", arguments))
            for command in arguments.split("&&"):
                program = shlex.split(command)[0]
                directory, _, name = program.rpartition("/bin/")
                is_of_image = (directory in environments and name == "pip") or program == "apt-get"
                assert is_of_image or shutil.which(program), program
        if step == "COPY" and "--from" in arguments:
            assert arguments.split()[0].removeprefix("--from=") in stages
    python = next(arguments for step, arguments in dockerfile() if step == "FROM").split()[0]
    assert python.startswith("python:" + PYTHONS[0])
