"use strict";

/** What of React Native the SDK uses, with a native module of the tests: `native.events` has its listener. */

const Platform = { OS: "android", Version: 34, select: (choices) => choices[Platform.OS] ?? choices.default };
const PermissionsAndroid = { RESULTS: { GRANTED: "granted" }, request: jest.fn(async () => "granted") };

const native = { onEvent: jest.fn((listener) => void (native.emit = (event) => listener(JSON.stringify(event)))) };
for (const name of ["start", "stop", "setAlias", "clearAlias", "addTags", "removeTags", "addStags", "removeStags", "setAttributes"])
  native[name] = jest.fn(async () => null);
for (const name of ["listen", "handled", "setAddress", "clearAddress", "report", "activity", "setBadge"]) native[name] = jest.fn();
native.getDevice = jest.fn(async () => '{"alias": "alice", "tags": [7], "stags": [], "attributes": {}}');
native.takeMessage = jest.fn(async () => true);
native.requestPermission = jest.fn(async () => false);

module.exports = { Platform, PermissionsAndroid, TurboModuleRegistry: { getEnforcing: () => native }, native };
