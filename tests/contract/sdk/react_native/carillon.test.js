"use strict";

const PUSH = { type: "push", msgid: 7, is_notif: 0, content: "Hello" };

let native, reactNative, Carillon, CarillonError;

beforeEach(() => {
  jest.resetModules();
  reactNative = require("react-native");
  native = reactNative.native;
  ({ Carillon, CarillonError } = require("carillon-react-native"));
});

const start = (options) => Carillon.start({ url: "wss://h", appkey: "1", ...options });
const settled = () => new Promise((resolve) => setImmediate(resolve));
const refused = (code) => Object.assign(new Error("proof: expired"), { code: String(code) });

test("start listens first, then hands over what is for the native side", async () => {
  await start({ onPush: () => {}, attributes: { region: "Guangdong" }, opensClicks: true });
  expect(native.start).toHaveBeenCalledWith("wss://h", "1", { attributes: { region: "Guangdong" }, opensClicks: true });
  expect(native.listen.mock.invocationCallOrder[0]).toBeLessThan(native.start.mock.invocationCallOrder[0]);
});

test("a second start takes the new handlers, and listens once", async () => {
  const [first, second] = [jest.fn(), jest.fn()];
  await start({ onPush: first });
  await start({ onPush: second });
  native.emit({ type: "push", id: 1, push: PUSH });
  await settled();
  expect([first.mock.calls, second.mock.calls, native.onEvent.mock.calls.length]).toEqual([[], [[PUSH]], 1]);
});

test("a push is handled when the app's promise is fulfilled", async () => {
  let done;
  await start({ onPush: () => new Promise((resolve) => (done = resolve)) });
  native.emit({ type: "push", id: 3, push: PUSH });
  await settled();
  expect(native.handled).not.toHaveBeenCalled();
  done();
  await settled();
  expect(native.handled).toHaveBeenCalledWith(3, null);
});

test("a push on which the app fails is given back", async () => {
  const warn = jest.spyOn(console, "warn").mockImplementation(() => {});
  await start({ onPush: () => Promise.reject(new Error("disk full")) });
  native.emit({ type: "push", id: 3, push: PUSH });
  await settled();
  expect(native.handled).toHaveBeenCalledWith(3, "Error: disk full");
  expect(warn).toHaveBeenCalled();
});

test("clicks, notifications and events reach their handlers", async () => {
  const handlers = { onClick: jest.fn(), onNotification: jest.fn(), onEvent: jest.fn() };
  await start(handlers);
  native.emit({ type: "click", push: PUSH });
  native.emit({ type: "notification", push: PUSH });
  native.emit({ type: "retries", afterMs: 200, reason: "lost" });
  await settled();
  expect(handlers.onClick).toHaveBeenCalledWith(PUSH);
  expect(handlers.onNotification).toHaveBeenCalledWith(PUSH);
  expect(handlers.onEvent).toHaveBeenCalledWith({ type: "retries", afterMs: 200, reason: "lost" });
});

test.each([
  ["403", "refused", 403],
  ["unavailable", "unavailable", undefined],
  ["ended", "ended", undefined],
])("an error of the native module with the code %s is of the kind %s", async (code, kind, number) => {
  native.addTags.mockRejectedValue(refused(code));
  const error = await Carillon.addTags([1]).catch((error) => error);
  expect(error).toBeInstanceOf(CarillonError);
  expect([error.kind, error.code, error.message]).toEqual([kind, number, "proof: expired"]);
});

test("a proof is fetched again where it is refused, three times in all", async () => {
  jest.useFakeTimers();
  native.setAlias.mockRejectedValue(refused(401));
  const proof = jest.fn(async () => "jwt");
  const failed = Carillon.setAlias("alice", { proof }).catch((error) => error);
  await jest.runAllTimersAsync();
  expect((await failed).code).toBe(401);
  expect([proof.mock.calls.length, native.setAlias.mock.calls]).toEqual([3, Array(3).fill(["alice", "jwt"])]);
  jest.useRealTimers();
});

test("a proof that is no function is handed in once, and one that hangs is late", async () => {
  native.addStags.mockRejectedValue(refused(401));
  await expect(Carillon.addStags(["a"], { proof: "jwt" })).rejects.toThrow("expired");
  expect(native.addStags.mock.calls).toEqual([[["a"], "jwt"]]);
  jest.useFakeTimers();
  const late = Carillon.addStags(["a"], { proof: () => new Promise(() => {}) }).catch((error) => error);
  await jest.runAllTimersAsync();
  expect((await late).kind).toBe("deadline");
  jest.useRealTimers();
});

test("requests hand over null for what is left out", async () => {
  await Carillon.setAlias("alice");
  expect(native.setAlias).toHaveBeenCalledWith("alice", null);
  expect(await Carillon.onMessage({ carillon: "{}" })).toBe(true);
  expect(native.takeMessage).toHaveBeenCalledWith({ carillon: "{}" }, null, null);
  expect((await Carillon.getDevice()).alias).toBe("alice");
});

test("the permission is asked for by React Native on Android, from 13 on, and natively on an iPhone", async () => {
  const { Platform, PermissionsAndroid } = reactNative;
  expect(await Carillon.requestPermission()).toBe(true);
  PermissionsAndroid.request.mockResolvedValue("denied");
  expect(await Carillon.requestPermission()).toBe(false);
  Platform.Version = 32;
  expect(await Carillon.requestPermission()).toBe(true);
  Platform.OS = "ios";
  expect(await Carillon.requestPermission()).toBe(false);
  expect([PermissionsAndroid.request.mock.calls.length, native.requestPermission.mock.calls.length]).toEqual([2, 1]);
});

test("the Carillon for tests of apps has every function of the real one", () => {
  const mocked = require("carillon-react-native/jest").Carillon;
  expect(Object.keys(mocked).sort()).toEqual(Object.keys(Carillon).sort());
});

test("the page's programs run, and call every function", async () => {
  const snippets = require("./snippets.json").map((name) => require(`./${name}`));
  const [{ startPushes }, { requests, logOut }, { logIn }, fcm] = snippets;
  jest.spyOn(console, "log").mockImplementation(() => {});
  global.fetch = jest.fn(async () => ({ text: async () => "jwt" }));
  await startPushes();
  native.emit({ type: "connected", isNew: true, ignored: [] });
  native.emit({ type: "push", id: 1, push: PUSH });
  await settled();
  expect([native.setAlias.mock.calls, native.handled.mock.calls]).toEqual([[["alice", null]], [[1, null]]]);
  await requests();
  await logIn("session");
  expect(native.setAlias).toHaveBeenLastCalledWith("alice", "jwt");
  fcm.tookToken("t");
  await fcm.tookMessage({ carillon: "{}" }, "title");
  fcm.turnedOff();
  fcm.shownByTheApp(7);
  await logOut();
  const asked = new Set(["requestPermission"]); // answered by PermissionsAndroid here
  const called = (name) => native[name].mock.calls.length > 0;
  expect(Object.keys(native).filter((name) => native[name].mock && !called(name) && !asked.has(name))).toEqual([]);
});
