"use strict";

/**
 * Push messages of Carillon in React Native, over its SDKs for Android and iOS. docs/react-native.md describes it; the
 * types are in index.d.ts. No build step: Metro, Jest and Node read this file as it is.
 */

const { PermissionsAndroid, Platform, TurboModuleRegistry } = require("react-native");

const [PROOF_ATTEMPTS, PROOF_RETRY_MS, PROOF_MS] = [3, 3_000, 30_000]; // the delay doubles, and chance doubles it at most
const NOTIFICATIONS = "android.permission.POST_NOTIFICATIONS"; // asked for from Android 13 (API level 33) on

/**
 * `kind` is "refused": the service answered with an error of this `code` (from 500 on it may be repeated); "unavailable":
 * no connection, or not started; "deadline": no answer in time; "ended": the device does not reconnect; "argument".
 */
class CarillonError extends Error {
  constructor(kind, message, code) {
    super(message);
    Object.assign(this, { name: "CarillonError", kind, code });
  }
}

let listening = null; // the native module, once its events are received
let handlers = {};

const native = () => TurboModuleRegistry.getEnforcing("Carillon");

/** Waits for an answer of the native module, whose errors have the code of the service or a kind. */
async function answered(answer) {
  try {
    return await answer;
  } catch (error) {
    const code = /^\d+$/.test(error.code) ? Number(error.code) : undefined;
    throw new CarillonError(code === undefined ? error.code : "refused", error.message, code);
  }
}

/** Sends a request with a proof, which is fetched again where the service refuses it. */
async function proved(send, proof) {
  if (typeof proof !== "function") return answered(send(proof ?? null));
  for (let failures = 1; ; failures++) {
    const fetched = await fetchProof(proof);
    try {
      return await answered(send(fetched));
    } catch (error) {
      if (failures === PROOF_ATTEMPTS || ![401, 429].includes(error.code)) throw error;
    }
    const delay_ms = PROOF_RETRY_MS * 2 ** (failures - 1) * (1 + Math.random());
    await new Promise((resolve) => setTimeout(resolve, delay_ms));
  }
}

async function fetchProof(proof) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new CarillonError("deadline", "no proof in time")), PROOF_MS);
  });
  return Promise.race([Promise.resolve().then(proof), late]).finally(() => clearTimeout(timer));
}

/** Calls a handler of the app; returns null, or why it failed. */
async function failure(handler, value) {
  try {
    await handler?.(value);
    return null;
  } catch (error) {
    console.warn("carillon: the app failed on an event:", error);
    return String(error);
  }
}

async function received(text) {
  const { id, ...event } = JSON.parse(text);
  if (event.type === "push") native().handled(id, await failure(handlers.onPush, event.push));
  else if (event.type === "notification") await failure(handlers.onNotification, event.push);
  else if (event.type === "click") await failure(handlers.onClick, event.push);
  else await failure(handlers.onEvent, event);
}

const Carillon = {
  async start({ url, appkey, onPush, onNotification, onClick, onEvent, ...options }) {
    handlers = { onPush, onNotification, onClick, onEvent };
    const module = native();
    if (listening !== module) {
      listening = module;
      module.onEvent(received);
    }
    module.listen(); // first: a push that finds no JavaScript listening comes again much later
    await answered(module.start(url, appkey, options));
  },
  stop: () => answered(native().stop()),

  setAlias: (alias, options) => proved((proof) => native().setAlias(alias, proof), options?.proof),
  clearAlias: () => answered(native().clearAlias()),
  addTags: (tags, options) => proved((proof) => native().addTags(tags, proof), options?.proof),
  removeTags: (tags) => answered(native().removeTags(tags)),
  addStags: (stags, options) => proved((proof) => native().addStags(stags, proof), options?.proof),
  removeStags: (stags) => answered(native().removeStags(stags)),
  setAttributes: (attributes) => answered(native().setAttributes(attributes)),
  getDevice: async () => JSON.parse(await answered(native().getDevice())),

  setAddress: (channel, address) => native().setAddress(channel, address),
  clearAddress: (channel) => native().clearAddress(channel),
  onMessage: (data, { title, content } = {}) => native().takeMessage(data, title ?? null, content ?? null),

  report: (event, msgid) => native().report(event, msgid),
  activity: (event) => native().activity(event),
  setBadge: (count) => native().setBadge(count),

  async requestPermission() {
    if (Platform.OS !== "android") return native().requestPermission();
    if (Platform.Version < 33) return true;
    return (await PermissionsAndroid.request(NOTIFICATIONS)) === PermissionsAndroid.RESULTS.GRANTED;
  },
};

module.exports = { Carillon, CarillonError };
