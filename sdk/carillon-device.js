/**
 * The device's side of the device protocol, for browsers and Node. docs/devices.md specifies it, and shows this in use.
 *
 * @typedef {{type: "push", msgid: number, is_notif: 0 | 1, content: string, expires_at: number, title?: string,
 *   sound?: boolean, vibrate?: boolean, removable?: boolean, click?: {action: number, param?: any}, badge?: number,
 *   extra?: string}} Push
 * @typedef {{type: string, [field: string]: any}} Frame
 * @typedef {Object<string, string>} Attributes
 */

const SUBPROTOCOL = "carillon.device.v1";
const REMEMBERED = 1000; // message ids, so that nothing is shown twice
const MAX_WAITING = 1000; // frames that the app has not taken yet
const MAX_ACKNOWLEDGED = 400; // ids in one ack: a frame has 8 KiB at most
const [ANSWER_MS, CALLBACK_MS, CLOSE_MS] = [10_000, 30_000, 2_000];
const [FIRST_RETRY_MS, MAX_RETRY_MS, MAX_ASKED_MS] = [200, 30_000, 86_400_000];
const TIMERS = { set: (callback, ms) => setTimeout(callback, ms), clear: (timer) => clearTimeout(timer) };

/** Goodbyes that end a device, and what they mean. */
export const FINAL = {
  unauthorized: "the gateway does not accept this appkey, or this token with this key",
  replaced: "another connection of the same device took this one's place",
  protocol: "the gateway did not understand this device",
};

/**
 * `kind`: "ended", sent away for good, `reason` is the goodbye's; "refused", a request was answered with an error of
 * this `code` (from 500 on it may be repeated); "unavailable", no connection; "deadline", nothing came in time.
 */
export class DeviceError extends Error {
  constructor(kind, message, details = {}) {
    super(message);
    Object.assign(this, { name: "DeviceError", kind, reason: details.reason, code: details.code });
  }
}

/** A device: keeps its identity, stays connected from `connect` until `close` or a final goodbye. */
export class Device {
  #socket = null; // of the welcomed connection
  #lose = null; // ends the present connection
  #token = null;
  #key = null;
  #msgids = new Set(); // oldest first
  #inbox = [];
  #handling = null;
  #handled = [];
  #settling = null;
  #saving = Promise.resolve();
  #answers = new Map();
  #lastId = 0;
  #keeping = null;
  #welcomed = null;
  #closed = false;
  #wake = () => {};

  /**
   * `onPush` gets each push once; when it has returned, or its promise is fulfilled, the push is saved as handled and
   * acknowledged. One on which it fails, or takes over 30 s, is not acknowledged and comes again. `onEvent` gets the
   * frames welcome, goodbye, and error where it answers no request, and the device's own {type: "disconnected", reason,
   * retry_ms} and {type: "ended", reason}. Both are called one at a time, in the order of the frames.
   *
   * `storage` is like localStorage (getItem, setItem) or a Map (get, set), and may answer with promises; one device at
   * a time may use a `storageKey`. `heartbeat` is a wish in seconds. The rest replaces what is global.
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
    Object.assign(this, { url, appkey, storage, storageKey, timers, random });
    Object.assign(this, { attributes, heartbeat, onPush, onEvent, WebSocket });
  }

  /** The device's name, null before the first welcome. */
  get token() { return this.#token; }

  /** Fulfilled once welcomed. DeviceError: "ended"; "deadline", it goes on trying; "unavailable", closed meanwhile. */
  async connect(ms = 30_000) {
    if (this.#keeping === null) {
      this.#welcomed = later();
      (this.#keeping = this.#keep()).catch(() => {});
    }
    const closed = this.#keeping.then(() => Promise.reject(new DeviceError("unavailable", "the device was closed")));
    await this.#within(ms, Promise.race([this.#welcomed.promise, closed]), "welcome");
  }

  /** Fulfilled when the device was closed; DeviceError "ended" when it was sent away for good. */
  ended = async () => this.#keeping;

  /** Acknowledges what is handled, then disconnects for good. */
  async close() {
    const handled = () => Promise.resolve(this.#handling).then(() => this.#settling);
    await this.#within(CLOSE_MS, handled(), "app").catch(() => {});
    this.#closed = true;
    this.#wake();
    this.#lose?.("closed");
    await this.#keeping?.catch(() => {});
    await this.#within(CLOSE_MS, handled(), "app").catch(() => {}); // what came meanwhile is shown, so it must be saved
  }

  // Requests fail with DeviceError "refused", "unavailable" or "deadline".
  setAlias = (/** @type {string} */ alias) => this.request({ type: "set_alias", alias });
  clearAlias = () => this.request({ type: "clear_alias" });
  addTags = (/** @type {number[]} */ tags) => this.request({ type: "add_tags", tags });
  removeTags = (/** @type {number[]} */ tags) => this.request({ type: "remove_tags", tags });
  addStags = (/** @type {string[]} */ stags) => this.request({ type: "add_stags", stags });
  removeStags = (/** @type {string[]} */ stags) => this.request({ type: "remove_stags", stags });
  setAttributes = (/** @type {Attributes} */ device) => this.request({ type: "set_attributes", device });
  /** @returns {Promise<{alias: string | null, tags: number[], stags: string[], device: Attributes}>} */
  getDevice = () => this.request({ type: "get_device" });
  /** @param {"shown" | "clicked" | "dismissed"} event @param {number} msgid */
  report = (event, msgid) => this.send({ type: "report", event, msgid });
  /** @param {"open" | "login" | "logout"} event */
  activity = (event) => this.send({ type: "activity", event });

  /** Sends a frame with an id of its own. @param {Frame} frame @returns {Promise<any>} the ok that answers it */
  async request(frame, ms = ANSWER_MS) {
    const id = ++this.#lastId;
    const answered = later();
    this.send({ ...frame, id });
    this.#answers.set(id, answered);
    try {
      return await this.#within(ms, answered.promise, `answer to ${frame.type}`);
    } finally {
      this.#answers.delete(id);
    }
  }

  /** Sends a frame as it is. DeviceError "unavailable": no connection. @param {Frame} frame */
  send(frame) {
    if (this.#socket === null) throw new DeviceError("unavailable", "the device is not connected");
    this.#socket.send(JSON.stringify(frame));
  }

  async #keep() {
    await this.#load();
    for (let failures = 0; !this.#closed; ) {
      const { welcomed, end } = await this.#once();
      failures = welcomed ? 0 : failures + 1;
      if (welcomed) this.#welcomed = later();
      if (this.#closed) break;
      if (end.type === "goodbye" && Object.hasOwn(FINAL, end.reason)) {
        this.#put({ type: "ended", reason: end.reason });
        await this.#within(CALLBACK_MS, this.#handling, "app").catch(() => {});
        throw new DeviceError("ended", FINAL[end.reason], { reason: end.reason });
      }
      const jitter_ms = this.random() * Math.min(MAX_RETRY_MS, FIRST_RETRY_MS * 2 ** failures);
      const asked_ms = end.retry_after_ms > 0 ? Math.min(MAX_ASKED_MS, end.retry_after_ms) : jitter_ms;
      this.#put({ type: "disconnected", reason: end.reason, retry_ms: Math.round(asked_ms) });
      const waited = later();
      const timer = this.timers.set((this.#wake = waited.resolve), asked_ms);
      await waited.promise;
      this.timers.clear(timer);
    }
  }

  /** One connection, from hello to its end; `end` is the goodbye, or {type: "lost", reason}. */
  async #once() {
    const socket = new this.WebSocket(this.url, SUBPROTOCOL);
    const ended = later();
    let [timer, welcomed, pinged, heartbeat_ms] = [null, false, false, 0];
    const start = (callback, ms) => (this.timers.clear(timer), (timer = this.timers.set(callback, ms)));
    const silent = () => this.#lose?.(`no answer within ${ANSWER_MS / 1000} s`);
    const ping = () => {
      pinged = true;
      socket.send('{"type":"ping"}');
      start(silent, ANSWER_MS);
    };
    start(silent, ANSWER_MS);
    this.#lose = (reason) => ended.resolve({ type: "lost", reason });
    const known = this.#token === null ? {} : { token: this.#token, key: this.#key };
    const hello = { type: "hello", appkey: this.appkey, ...known, device: this.attributes, heartbeat: this.heartbeat };
    socket.onopen = () => socket.send(JSON.stringify(hello));
    socket.onerror = socket.onclose = () => this.#lose("connection lost");
    socket.onmessage = ({ data }) => {
      const frame = parsed(data);
      if (pinged) start(ping, heartbeat_ms);
      pinged = false;
      if (frame?.type === "goodbye" && typeof frame.reason === "string") {
        this.#put(frame);
        ended.resolve(frame);
      } else if (welcomed) {
        this.#received(frame);
      } else if (frame?.type === "welcome" && frame.token && frame.key && frame.heartbeat > 0) {
        [welcomed, heartbeat_ms] = [true, frame.heartbeat * 1000];
        [this.#token, this.#key, this.#socket] = [frame.token, frame.key, socket];
        this.#put(frame);
        start(ping, this.random() * heartbeat_ms);
      }
    };
    const end = await ended.promise;
    socket.onopen = socket.onmessage = socket.onerror = socket.onclose = null;
    this.timers.clear(timer);
    this.#socket = this.#lose = null;
    socket.close(1000);
    this.#answers.forEach((answered) => answered.reject(new DeviceError("unavailable", "the connection was lost")));
    return { welcomed, end };
  }

  #received(frame) {
    const answered = this.#answers.get(frame?.id);
    const isPush = frame?.type === "push" && Number.isSafeInteger(frame.msgid);
    if (frame?.type === "ok") answered?.resolve(frame);
    else if (isPush || (frame?.type === "error" && !answered)) this.#put(frame);
    else if (frame?.type === "error") answered.reject(new DeviceError("refused", frame.desc, { code: frame.code }));
  }

  /** To the app's callbacks; a device with too many waiting loses the connection, and its pushes come again. */
  #put(frame) {
    if (this.#inbox.length >= MAX_WAITING) return this.#lose?.("too many pushes are waiting");
    this.#inbox.push(frame);
    this.#handling ??= this.#handle();
  }

  async #handle() {
    for (let frame; (frame = this.#inbox.shift()); ) {
      if (frame.type === "push") await this.#push(frame);
      else if (frame.type !== "welcome" || (await this.#save())) {
        await this.#called(this.onEvent, frame);
        if (frame.type === "welcome" && this.#socket !== null) this.#welcomed.resolve();
      } else this.#lose?.("the identity could not be saved");
    }
    this.#handling = null;
  }

  async #push(push) {
    if (!this.#msgids.has(push.msgid)) {
      if (!(await this.#called(this.onPush, push))) return;
      this.#msgids.add(push.msgid);
      if (this.#msgids.size > REMEMBERED) this.#msgids.delete(this.#msgids.values().next().value);
    }
    this.#handled.push(push.msgid);
    this.#settling ??= this.#settle();
  }

  /** Whether the app took it. */
  async #called(callback, frame) {
    try {
      await this.#within(CALLBACK_MS, callback?.(frame), "end of the app's callback");
    } catch (error) {
      console.warn(`carillon: the app failed on a frame of type ${frame.type}:`, error);
      return false;
    }
    return true;
  }

  /** One write and one acknowledgement for all that was handled in this turn of the loop. */
  async #settle() {
    await new Promise((resolve) => this.timers.set(resolve, 0));
    while (this.#handled.length) {
      const msgids = this.#handled.splice(0);
      if (!(await this.#save()) || this.#socket === null) continue; // they come again, and are acknowledged then
      while (msgids.length) this.send({ type: "ack", msgids: msgids.splice(0, MAX_ACKNOWLEDGED) });
    }
    this.#settling = null;
  }

  async #load() {
    const text = await (this.storage.getItem ?? this.storage.get).call(this.storage, this.storageKey);
    const saved = text ? JSON.parse(text) : {};
    [this.#token, this.#key, this.#msgids] = [saved.token ?? null, saved.key ?? null, new Set(saved.msgids)];
  }

  /** Whether it is saved. */
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
      const late = () => reject(new DeviceError("deadline", `no ${what} within ${ms / 1000} s`));
      const timer = this.timers.set(late, ms);
      Promise.resolve(promise).then(resolve, reject).finally(() => this.timers.clear(timer));
    });
  }
}

function later() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  made.promise.catch(() => {}); // nobody may be waiting
  return made;
}

function parsed(data) {
  try {
    return JSON.parse(data);
  } catch {
    return null;
  }
}
