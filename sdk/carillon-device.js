/**
 * A client of Carillon's device protocol for browsers and Node. docs/devices.md specifies the protocol.
 *
 * @typedef {import("./carillon-device.js").Push} Push
 * @typedef {{type: string, [field: string]: any}} Frame
 * @typedef {Object<string, string>} Attributes
 * @typedef {string | (() => string | Promise<string>)} Proof
 */

const SUBPROTOCOL = "carillon.device.v1";
const [MAX_PUSHES, MAX_QUEUED, MAX_REPORTS] = [1000, 1100, 200]; // that wait: frames before a push, all frames, reports
const [MAX_MSGIDS, MAX_ACKNOWLEDGED] = [1000, 400]; // ids stored, so that none is shown twice; in a frame of 8 KiB
const VERSION = 1; // form of the stored state, which one without a version has
const [ANSWER_MS, CALLBACK_MS, CLOSE_MS] = [10_000, 30_000, 2_000];
const [FIRST_RETRY_MS, MAX_RETRY_MS, MAX_REQUESTED_RETRY_MS] = [200, 30_000, 86_400_000];
const [PROOF_ATTEMPTS, PROOF_RETRY_MS] = [3, 3_000]; // the delay doubles, and chance doubles it at most
const TIMERS = { set: (callback, ms) => setTimeout(callback, ms), clear: (timer) => clearTimeout(timer) };

/** The reasons of final goodbyes, after which a device does not reconnect, and their meaning. */
export const FINAL = {
  unauthorized: "the gateway does not accept this appkey, or this token with this key",
  replaced: "another connection of the same device took this one's place",
  protocol: "the gateway did not understand this device",
};

/**
 * `kind` is "ended": a final goodbye came, `reason` is the goodbye's; "refused": a request was answered with an error
 * of this `code` (from 500 on it may be repeated); "unavailable": no connection; "deadline": no answer in time.
 */
export class DeviceError extends Error {
  constructor(kind, message, details = {}) {
    super(message);
    Object.assign(this, { name: "DeviceError", kind, reason: details.reason, code: details.code });
  }
}

/** A device, which stays connected from `connect` until `close` or a final goodbye. */
export class Device {
  #socket = null; // of the welcomed connection
  #dropConnection = null; // set while there is a connection
  #token = null;
  #key = null;
  #msgids = new Set(); // oldest first
  #queue = []; // of frames for the app
  #handling = null;
  #handled = [];
  #acknowledging = null;
  #saving = Promise.resolve();
  #pending = new Map();
  #reports = new Map(); // unconfirmed, oldest first; sent again over the next connection
  #lastId = 0;
  #running = null;
  #welcomed = null;
  #closed = false;
  #endWait = () => {}; // ends the wait before a reconnect

  /**
   * `onPush` gets each push once; when it returns, or its promise is fulfilled, the push is saved, then acknowledged.
   * A push on which it fails or takes over 30 s is not acknowledged, and is sent again later. `onEvent` gets the frames
   * welcome, goodbye, and error where it answers no request, and the device's own events {type: "disconnected", reason,
   * retry_ms} and {type: "ended", reason}. Both are called one at a time, in the order of the frames.
   *
   * `storage` is like localStorage (getItem, setItem) or a Map (get, set), and may return promises; one device at a
   * time may use a `storageKey`. `heartbeat` is a request in seconds. The other options replace globals.
   *
   * @param {string} url ws:// or wss:// @param {string} appkey
   * @param {{storage?: any, storageKey?: string, onPush?: (push: Push) => any, onEvent?: (event: Frame) => any,
   *   attributes?: Attributes, heartbeat?: number, WebSocket?: any, random?: () => number,
   *   timers?: {set: (callback: () => void, ms: number) => any, clear: (timer: any) => void}}} [options]
   */
  constructor(url, appkey, options = {}) {
    if (!/^wss?:/.test(url)) throw new TypeError(`${url} is no ws:// or wss:// URL`);
    const { storage = new Map(), storageKey = `carillon-${appkey}`, timers = TIMERS, random = Math.random } = options;
    const { attributes, heartbeat, onPush, onEvent, WebSocket = globalThis.WebSocket } = options;
    if (typeof WebSocket !== "function")
      throw new TypeError("no WebSocket here: use Node 22, --experimental-websocket, or the option WebSocket");
    Object.assign(this, { url, appkey, storage, storageKey, timers, random });
    Object.assign(this, { attributes, heartbeat, onPush, onEvent, WebSocket });
  }

  /** The token that names the device; null before the first welcome. */
  get token() { return this.#token; }

  /**
   * Fulfilled once welcomed. DeviceError "ended"; "deadline": goes on trying; "unavailable": closed meanwhile. Any other
   * error: the stored state cannot be read.
   */
  async connect(ms = 30_000) {
    if (this.#running === null) {
      this.#welcomed = deferred();
      (this.#running = this.#stayConnected()).catch(() => {});
    }
    const closed = this.#running.then(() => Promise.reject(new DeviceError("unavailable", "the device was closed")));
    await this.#within(ms, Promise.race([this.#welcomed.promise, closed]), "welcome");
  }

  /** Fulfilled when the device was closed. DeviceError "ended": a final goodbye came. */
  ended = async () => this.#running;

  /** Acknowledges the handled pushes, then disconnects and does not reconnect. */
  async close() {
    const handled = () => Promise.resolve(this.#handling).then(() => this.#acknowledging);
    await this.#within(CLOSE_MS, handled(), "app").catch(() => {});
    this.#closed = true;
    this.#endWait();
    this.#dropConnection?.("closed");
    await this.#running?.catch(() => {});
    await this.#within(CLOSE_MS, handled(), "app").catch(() => {}); // pushes that came meanwhile were shown: save them
  }

  // Requests fail with DeviceError "refused", "unavailable" or "deadline".
  // `proof` shows that an alias or a tag is the user's: a JWT of the app's server, or a function that fetches one. It is
  // called for each attempt: after a refused proof, as one that has expired is, again with growing delays, three times in
  // all. An error of the function ends the request.
  /** @param {string} alias @param {{proof?: Proof}} [options] */
  setAlias = (alias, options) => this.#prove({ type: "set_alias", alias }, options?.proof);
  clearAlias = () => this.request({ type: "clear_alias" });
  /** @param {number[]} tags @param {{proof?: Proof}} [options] */
  addTags = (tags, options) => this.#prove({ type: "add_tags", tags }, options?.proof);
  removeTags = (/** @type {number[]} */ tags) => this.request({ type: "remove_tags", tags });
  /** @param {string[]} stags @param {{proof?: Proof}} [options] */
  addStags = (stags, options) => this.#prove({ type: "add_stags", stags }, options?.proof);
  removeStags = (/** @type {string[]} */ stags) => this.request({ type: "remove_stags", stags });
  setAttributes = (/** @type {Attributes} */ device) => this.request({ type: "set_attributes", device });
  // The address is where a channel, such as "fcm" or "webpush", reaches the device while it has no connection: the token
  // of the vendor's SDK, or a push subscription's endpoint with its keys. Set it at each start; a known one changes nothing.
  /** @param {string} channel @param {string} address @param {{keys?: {p256dh: string, auth: string}}} [options] */
  setAddress = (channel, address, options) =>
    this.request({ type: "set_address", channel, address, ...(options?.keys && { keys: options.keys }) });
  clearAddress = (/** @type {string} */ channel) => this.request({ type: "clear_address", channel });
  /** @returns {Promise<{alias: string | null, tags: number[], stags: string[], device: Attributes, channels?: string[]}>} */
  getDevice = () => this.request({ type: "get_device" });
  // Reports are sent at once, and over each later connection until the service confirms that they will not be lost.
  /** @param {"shown" | "clicked" | "dismissed"} event @param {number} msgid */
  report = (event, msgid) => this.#report({ type: "report", event, msgid });
  /** @param {"open" | "login" | "logout"} event */
  activity = (event) => this.#report({ type: "activity", event });

  /** Sends a frame with a new id. @param {Frame} frame @returns {Promise<any>} the ok frame that answers it */
  async request(frame, ms = ANSWER_MS) {
    const [id, answered] = [++this.#lastId, deferred()];
    this.send({ ...frame, id });
    this.#pending.set(id, answered);
    return this.#within(ms, answered.promise, `answer to ${frame.type}`).finally(() => this.#pending.delete(id));
  }

  /** Sends a request with a proof, which is fetched again where the gateway refuses it. */
  async #prove(frame, proof) {
    if (typeof proof !== "function") return this.request(proof === undefined ? frame : { ...frame, proof });
    for (let failures = 1; ; failures++) {
      const fetched = await this.#within(CALLBACK_MS, Promise.resolve().then(proof), "proof");
      try {
        return await this.request({ ...frame, proof: fetched });
      } catch (error) {
        if (failures === PROOF_ATTEMPTS || ![401, 429].includes(error.code)) throw error;
      }
      const waited = deferred();
      this.timers.set(waited.resolve, PROOF_RETRY_MS * 2 ** (failures - 1) * (1 + this.random()));
      await waited.promise;
    }
  }

  #report(frame) {
    const numbered = { ...frame, id: ++this.#lastId };
    this.#reports.set(numbered.id, numbered);
    if (this.#reports.size > MAX_REPORTS) this.#reports.delete(this.#reports.keys().next().value);
    if (this.#socket !== null) this.send(numbered);
  }

  /** Sends a frame unchanged. DeviceError "unavailable": no connection. @param {Frame} frame */
  send(frame) {
    if (this.#socket === null) throw new DeviceError("unavailable", "the device is not connected");
    this.#socket.send(JSON.stringify(frame));
  }

  async #stayConnected() {
    await this.#load();
    for (let failures = 0; !this.#closed; ) {
      const { welcomed, end } = await this.#connectOnce();
      failures = welcomed && !end.failed ? 0 : failures + 1;
      if (welcomed) this.#welcomed.resolve((this.#welcomed = deferred()).promise); // one that waits still goes on
      if (this.#closed) break;
      if (end.type === "goodbye" && Object.hasOwn(FINAL, end.reason)) {
        this.#enqueue({ type: "ended", reason: end.reason });
        await this.#within(CALLBACK_MS, this.#handling, "app").catch(() => {});
        throw new DeviceError("ended", FINAL[end.reason], { reason: end.reason });
      }
      const backoff_ms = this.random() * Math.min(MAX_RETRY_MS, FIRST_RETRY_MS * 2 ** failures);
      const retry_ms = end.retry_after_ms > 0 ? Math.min(MAX_REQUESTED_RETRY_MS, end.retry_after_ms) : backoff_ms;
      this.#enqueue({ type: "disconnected", reason: end.reason, retry_ms: Math.round(retry_ms) });
      const waited = deferred();
      const timer = this.timers.set((this.#endWait = waited.resolve), retry_ms);
      await waited.promise;
      this.timers.clear(timer);
    }
  }

  /** Runs one connection from hello to its end; `end` is the goodbye, or {type: "lost", reason, failed}. */
  async #connectOnce() {
    const socket = new this.WebSocket(this.url, SUBPROTOCOL);
    const ended = deferred();
    let [timer, welcomed, pinged, heartbeat_ms] = [null, false, false, 0];
    const start = (callback, ms) => (this.timers.clear(timer), (timer = this.timers.set(callback, ms)));
    const expired = () => this.#dropConnection?.(`no answer within ${ANSWER_MS / 1000} s`);
    const ping = () => {
      pinged = true;
      socket.send('{"type":"ping"}');
      start(expired, ANSWER_MS);
    };
    start(expired, ANSWER_MS);
    this.#dropConnection = (reason, failed = false) => ended.resolve({ type: "lost", reason, failed });
    const known = this.#token === null ? {} : { token: this.#token, key: this.#key };
    const hello = { type: "hello", appkey: this.appkey, ...known, device: this.attributes, heartbeat: this.heartbeat };
    socket.onopen = () => (start(expired, ANSWER_MS), socket.send(JSON.stringify(hello)));
    socket.onerror = socket.onclose = () => this.#dropConnection("connection lost");
    socket.onmessage = ({ data }) => {
      const frame = parsed(data);
      if (pinged) (pinged = false), start(ping, heartbeat_ms);
      if (frame?.type === "goodbye" && typeof frame.reason === "string") {
        ended.resolve(frame);
        this.#enqueue(frame);
      } else if (welcomed || frame?.type === "error") {
        this.#received(frame);
      } else if (frame?.type === "welcome" && frame.token && frame.key && frame.heartbeat > 0) {
        [welcomed, heartbeat_ms] = [true, frame.heartbeat * 1000];
        [this.#token, this.#key, this.#socket] = [frame.token, frame.key, socket];
        this.#reports.forEach((report) => this.send(report));
        this.#enqueue(frame);
        start(ping, this.random() * heartbeat_ms);
      }
    };
    const end = await ended.promise;
    socket.onopen = socket.onmessage = socket.onerror = socket.onclose = null;
    this.timers.clear(timer);
    this.#socket = this.#dropConnection = null;
    socket.close(1000);
    this.#pending.forEach((answered) => answered.reject(new DeviceError("unavailable", "the connection was lost")));
    return { welcomed, end };
  }

  #received(frame) {
    const answered = this.#pending.get(frame?.id);
    this.#reports.delete(frame?.id);
    const isPush = frame?.type === "push" && Number.isSafeInteger(frame.msgid);
    if (frame?.type === "ok") answered?.resolve(frame);
    else if (isPush || (frame?.type === "error" && !answered)) this.#enqueue(frame);
    else if (frame?.type === "error") answered.reject(new DeviceError("refused", frame.desc, { code: frame.code }));
  }

  /** Queues a frame for the app, no push twice. With a full queue the connection is dropped; pushes come again. */
  #enqueue(frame) {
    if (this.#queue.some(({ type, msgid }) => type === "push" && type === frame.type && msgid === frame.msgid)) return;
    const most = frame.type === "push" ? MAX_PUSHES : MAX_QUEUED;
    if (this.#queue.length >= most) return this.#dropConnection?.("too many pushes are waiting", true);
    this.#queue.push(frame);
    this.#handling ??= this.#handle();
  }

  async #handle() {
    for (let frame; (frame = this.#queue.shift()); ) {
      if (frame.type === "push") await this.#push(frame);
      else if (frame.type !== "welcome" || (await this.#save())) {
        await this.#call(this.onEvent, frame);
        if (frame.type === "welcome" && this.#socket !== null) this.#welcomed.resolve();
      } else this.#dropConnection?.("the identity could not be saved", true);
    }
    this.#handling = null;
  }

  async #push(push) {
    if (!this.#msgids.has(push.msgid)) {
      if (!(await this.#call(this.onPush, push))) return;
      this.#msgids.add(push.msgid);
      if (this.#msgids.size > MAX_MSGIDS) this.#msgids.delete(this.#msgids.values().next().value);
    }
    this.#handled.push(push.msgid);
    this.#acknowledging ??= this.#acknowledge();
  }

  /** Calls back; false: the app failed, or took too long. */
  async #call(callback, frame) {
    try {
      await this.#within(CALLBACK_MS, callback?.(frame), "end of the app's callback");
    } catch (error) {
      console.warn(`carillon: the app failed on a frame of type ${frame.type}:`, error);
      return false;
    }
    return true;
  }

  /** Saves and acknowledges together all pushes that were handled in this turn of the event loop. */
  async #acknowledge() {
    await new Promise((resolve) => this.timers.set(resolve, 0));
    while (this.#handled.length) {
      const msgids = this.#handled.splice(0);
      if (!(await this.#save()) || this.#socket === null) continue; // they are sent again, and acknowledged then
      while (msgids.length) this.send({ type: "ack", msgids: msgids.splice(0, MAX_ACKNOWLEDGED) });
    }
    this.#acknowledging = null;
  }

  async #load() {
    const text = await (this.storage.getItem ?? this.storage.get).call(this.storage, this.storageKey);
    const saved = text ? JSON.parse(text) : {};
    if ("version" in saved && saved.version !== VERSION) throw new Error("the state was saved by a later version of the SDK");
    [this.#token, this.#key, this.#msgids] = [saved.token ?? null, saved.key ?? null, new Set(saved.msgids)];
  }

  /** Writes the state to the storage; false: the storage failed. */
  async #save() {
    const saving = this.#saving.then(() => {
      const text = JSON.stringify({ token: this.#token, key: this.#key, msgids: [...this.#msgids] });
      return (this.storage.setItem ?? this.storage.set).call(this.storage, this.storageKey, text);
    });
    this.#saving = saving.catch((error) => console.warn(`carillon: not saved: ${error}`));
    return saving.then(() => true, () => false);
  }

  #within(ms, promise, what) {
    return new Promise((resolve, reject) => {
      const timer = this.timers.set(() => reject(new DeviceError("deadline", `no ${what} within ${ms / 1000} s`)), ms);
      Promise.resolve(promise).then(resolve, reject).finally(() => this.timers.clear(timer));
    });
  }
}

function deferred() {
  const methods = {};
  const promise = new Promise((resolve, reject) => Object.assign(methods, { resolve, reject }));
  promise.catch(() => {}); // a rejection that nobody awaits is no error
  return { promise, ...methods };
}

const parsed = (data) => { try { return JSON.parse(data); } catch { return null; } };
