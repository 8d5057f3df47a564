"""The React Native SDK: what its npm package holds, and that each part compiles and runs as far as it can here."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from testkit.kotlin_sdk import SOURCES as KOTLIN
from testkit.kotlin_sdk import snippets as kotlin_snippets
from testkit.maven import maven
from testkit.npm_packages import npm_packages
from testkit.programs import needed
from testkit.react_native import PAGE, generated, installed, react_native
from testkit.repository import ROOT
from testkit.swift_sdk import snippets as swift_snippets
from testkit.swift_sdk import swift_sdk

HERE = Path(__file__).parent / "react_native"
SDK = ROOT / "sdk/react-native"
TOOLS = ROOT / "testkit/javascript"
SMALL_BYTES = 100_000
MAVEN_BOUND_S = 600
NAME = "{http://schemas.android.com/apk/res/android}name"

OF_REACT_NATIVE = (
    *(f"bridge/{name}" for name in ("Promise", "Callback", "Dynamic", "LifecycleEventListener", "ReactMethod")),
    *(f"bridge/{name}" for name in ("ReadableArray", "ReadableMap", "ReadableMapKeySetIterator", "ReadableType")),
    *(f"bridge/{name}" for name in ("WritableArray", "WritableMap")),
    *(f"module/model/{name}" for name in ("ReactModuleInfo", "ReactModuleInfoProvider")),
    "turbomodule/core/interfaces/TurboModule",
)
"""The Kotlin files of React Native that the module needs, beside those in Java, which are only read."""


def programs(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def methods_of_the_specification() -> set[str]:
    text = (SDK / "src/NativeCarillon.ts").read_text()
    return set(re.findall(r"^  (\w+)\(", text, re.MULTILINE))


def run_node(program: str, *arguments: str, cwd: Path) -> None:
    """Run a program of npm's packages. AssertionError: it failed, with what it said."""
    modules = npm_packages(TOOLS) / "node_modules"
    command = [needed("node"), str(modules / program), *arguments]
    env = {**os.environ, "NODE_PATH": str(modules)}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-6000:]


def test_the_npm_package_holds_all_that_an_app_builds(tmp_path: Path) -> None:
    package = installed(tmp_path)
    (tarball,) = tmp_path.glob("*.tgz")
    assert tarball.stat().st_size < SMALL_BYTES
    about = json.loads((package / "package.json").read_text())
    assert not {"dependencies", "scripts"} & set(about)
    files = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert {about["main"][2:], about["types"][2:], "jest.js", "jest.d.ts", "react-native.config.js"} <= files
    assert {"carillon-react-native.podspec", "ios/Carillon.podspec", "android/build.gradle"} <= files
    assert {"ios/RCTCarillon.mm", "ios/CarillonReact.swift", "ios/Carillon/PrivacyInfo.xcprivacy"} <= files
    for module in ("device", "android"):
        sources = KOTLIN / module / "src/main/kotlin"
        assert {f"android/sdk/{path.relative_to(sources)}" for path in sources.rglob("*.kt")} <= files
    swift = ROOT / "sdk/swift/Sources/Carillon"
    assert {f"ios/Carillon/{path.relative_to(swift)}" for path in swift.rglob("*.swift")} <= files
    assert not [name for name in files if "test" in name.lower() or name.startswith(".")]


def test_what_apps_configure_and_build_names_what_is_there(tmp_path: Path) -> None:
    package = installed(tmp_path)
    manifest = ElementTree.parse(package / "android/src/main/AndroidManifest.xml").getroot()
    assert "package" not in manifest.attrib
    assert manifest.find("uses-sdk") is None
    kotlin = "".join(path.read_text() for path in (package / "android").rglob("*.kt"))
    for component in manifest.findall("application/*"):
        name = component.attrib[NAME].rpartition(".")
        assert (name[0], re.search(rf"\bclass {name[2]}\b", kotlin) is not None) == ("dev.carillon.android", True)
    gradle = (package / "android/build.gradle").read_text()
    for named in re.findall(r'(?:srcDirs \+=|consumerProguardFiles) "([\w.]+)"', gradle):
        assert (package / "android" / named).exists(), named
    configured = (package / "react-native.config.js").read_text()
    assert "import dev.carillon.reactnative.CarillonPackage;" in configured
    codegen = json.loads((package / "package.json").read_text())["codegenConfig"]
    assert codegen["android"]["javaPackageName"] == "dev.carillon.reactnative"
    module = codegen["ios"]["modulesProvider"]["Carillon"]
    assert f"@implementation {module}\n" in (package / f"ios/{module}.mm").read_text()


def test_all_packages_have_one_version() -> None:
    version = json.loads((SDK / "package.json").read_text())["version"]
    assert json.loads((ROOT / "sdk/package.json").read_text())["version"] == version
    assert f'"{version}"' in (SDK / "ios/Carillon.podspec").read_text()
    assert f"carillon-react-native-{version}.tgz" in PAGE.read_text()


def test_both_platforms_and_the_javascript_have_every_method_of_the_specification() -> None:
    methods = methods_of_the_specification()
    assert len(methods) > 15
    kotlin = (SDK / "android/src/main/java/dev/carillon/reactnative/CarillonModule.kt").read_text()
    assert methods - set(re.findall(r"override fun (\w+)\(", kotlin)) == set()
    apples = (SDK / "ios/RCTCarillon.mm").read_text()
    assert methods - set(re.findall(r"^- \(void\)(\w+)", apples, re.MULTILINE)) == set()
    javascript = (SDK / "index.js").read_text()
    assert {name for name in methods if f".{name}(" not in javascript} == set()
    declared = (SDK / "index.d.ts").read_text().partition("export interface CarillonSdk {")[2]
    functions = re.findall(
        r"^  (?:async )?(\w+)(?:: \(|: async \(|\()", javascript.partition("const Carillon = {")[2], re.M
    )
    assert set(re.findall(r"^  (\w+)\(", declared, re.MULTILINE)) == set(functions)


def test_each_message_to_the_swift_class_is_one_of_its_methods() -> None:
    swift = (SDK / "ios/CarillonReact.swift").read_text()
    selectors = set()
    for name, parameters in re.findall(r"@objc public func (\w+)\((.*)\)(?: ->.*)? \{", swift):
        labels = re.findall(r"(?:^|, )(\w+)(?: \w+)?: ", parameters)
        selectors.add(name + "".join(f"{'' if label == '_' else label}:" for label in labels))
    text = re.sub(r"\^\([^)]*\) \{.*?\n +\}", "block", (SDK / "ios/RCTCarillon.mm").read_text(), flags=re.DOTALL)
    sent = set()
    for message in re.findall(r"\[CarillonReact\.shared\s+(.*?)\];", text, re.DOTALL):
        sent.add("".join(re.findall(r"\w+:", message)) or message)
    assert len(sent) > 10
    assert sent - selectors == set()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_javascript_and_the_pages_programs_run_under_jest(tmp_path: Path) -> None:
    installed(tmp_path)
    react = tmp_path / "node_modules/react-native"
    react.mkdir()
    shutil.copy(HERE / "react-native.js", react / "index.js")
    for name in ("carillon.test.js", "typescript.js"):
        shutil.copy(HERE / name, tmp_path)
    names = [f"snippet{number}.ts" for number, _ in enumerate(programs("ts"))]
    for name, text in zip(names, programs("ts"), strict=True):
        (tmp_path / name).write_text(text)
    (tmp_path / "snippets.json").write_text(json.dumps(names))
    (of_apps,) = programs("js")
    (tmp_path / "app.test.js").write_text(of_apps)
    modules = str(npm_packages(TOOLS) / "node_modules")
    configuration = {
        "transform": {r"\.ts$": "<rootDir>/typescript.js"},
        "modulePaths": [modules],
        "testMatch": ["<rootDir>/*.test.js"],
        "testEnvironment": "node",
        "watchman": False,
    }
    (tmp_path / "jest.config.json").write_text(json.dumps(configuration))
    run_node("jest/bin/jest.js", "--ci", "--runInBand", "--config", "jest.config.json", cwd=tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_types_are_right(tmp_path: Path) -> None:
    package = installed(tmp_path)
    (tmp_path / "node_modules/react-native").symlink_to(react_native())
    for number, text in enumerate(programs("ts")):
        (tmp_path / f"snippet{number}.ts").write_text(text)
    (tmp_path / "uses.ts").write_text(
        'import { Carillon } from "carillon-react-native";\n'
        'import { emit } from "carillon-react-native/jest";\n'
        'export const told = emit("onEvent", { type: "retries", afterMs: 1, reason: "lost" });\n'
        "// @ts-expect-error no such event\n"
        'Carillon.report("seen", 1);\n'
        "// @ts-expect-error an appkey is missing\n"
        'export const started = Carillon.start({ url: "wss://h" });\n'
    )
    options = ["--noEmit", "--strict", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler"]
    # React Native's own declarations need React's, which are not installed here.
    sources = [*(f"snippet{number}.ts" for number, _ in enumerate(programs("ts"))), "uses.ts"]
    specification = str(package / "src/NativeCarillon.ts")
    run_node(
        "typescript/bin/tsc", *options, "--skipLibCheck", "--lib", "es2022,dom", *sources, specification, cwd=tmp_path
    )


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_the_kotlin_module_compiles_with_the_generated_specification(tmp_path: Path) -> None:
    """With the language of Kotlin 1.9, which an app of React Native 0.76 has."""
    needed("java")
    package = installed(tmp_path)
    generated(package, tmp_path / "generated")
    source = react_native() / "ReactAndroid/src/main/java"
    for path in source.rglob("*.java"):
        copy = tmp_path / "declarations" / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    for name in OF_REACT_NATIVE:
        copy = tmp_path / "declarations/com/facebook/react" / f"{name}.kt"
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / "com/facebook/react" / f"{name}.kt", copy)
    for number, text in enumerate(kotlin_snippets(PAGE)):
        (tmp_path / f"declarations/Snippet{number}.kt").write_text(text)
    shutil.copy(HERE / "pom.xml", tmp_path)
    shutil.copy(KOTLIN / "pom.xml", tmp_path / "parent.xml")
    # Of a package of annotations that React Native depends on.
    annotation = tmp_path / "declarations/com/facebook/proguard/annotations/DoNotStrip.java"
    annotation.parent.mkdir(parents=True, exist_ok=True)
    annotation.write_text("package com.facebook.proguard.annotations;\n\npublic @interface DoNotStrip {}\n")
    said = maven(["compile"], tmp_path, MAVEN_BOUND_S)
    assert said == "", said


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_objective_c_file_has_every_method_of_the_generated_protocol(tmp_path: Path) -> None:
    package = installed(tmp_path)
    header = generated(package, tmp_path / "generated") / "ios/CarillonSpec/CarillonSpec.h"
    protocol = header.read_text().partition("@protocol NativeCarillonSpec")[2].partition("@end")[0]
    implementation = (package / "ios/RCTCarillon.mm").read_text()
    assert _signatures(protocol) - _signatures(implementation) == set()


def _signatures(text: str) -> set[str]:
    found = re.findall(r"^- \(void\)(.*?)(?:;$|\n\{)", text, re.MULTILINE | re.DOTALL)
    return {re.sub(r"\* ", "*", re.sub(r"\s+", " ", re.sub(r"\s*:\s*", ":", each))) for each in found}


@pytest.mark.long
@pytest.mark.swift
@pytest.mark.timeout(1500)
def test_the_swift_class_and_the_pages_delegate_have_the_right_types(tmp_path: Path) -> None:
    sdk = swift_sdk()
    text = re.sub(r"@objc(\(\w+\))?\s", "", (SDK / "ios/CarillonReact.swift").read_text())  # Linux has no Objective-C
    (tmp_path / "CarillonReact.swift").write_text(text)
    (delegate,) = swift_snippets(PAGE)
    (tmp_path / "AppDelegate.swift").write_text(delegate)
    options = ["-parse-as-library", "-warnings-as-errors", "-I", str(sdk.package / "apple"), "-I", "."]
    module = ["-emit-module", "-emit-module-path", "CarillonReactNative.swiftmodule"]
    for words in (
        [*module, "-module-name", "CarillonReactNative", "CarillonReact.swift"],
        ["-typecheck", "AppDelegate.swift"],
    ):
        command = sdk.swift.command(["swiftc", *options, *words], tmp_path)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
