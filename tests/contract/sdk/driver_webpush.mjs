// Runs one device of carillon-webpush.js for the tests of frames over HTTP, as its page and its worker in one.
// What a browser has and Node has not is here as far as the file uses it.
import readline from "node:readline";

console.warn = () => {};
const emit = (line) => process.stdout.write(JSON.stringify(line) + "\n");

const values = new Map();
const request = (result) => {
  const made = { result };
  queueMicrotask(() => made.onsuccess?.());
  return made;
};
const store = { get: (name) => request(values.get(name)), put: (value, name) => values.set(name, value) };
const transaction = () => {
  const made = { objectStore: () => store };
  setTimeout(() => made.oncomplete?.());
  return made;
};
globalThis.indexedDB = { open: () => request({ transaction, close() {} }) };

const listeners = {};
globalThis.self = globalThis;
globalThis.ServiceWorkerGlobalScope = class {
  static [Symbol.hasInstance] = () => true;
};
globalThis.addEventListener = (type, listener) => (listeners[type] = listener);
let opened = null;
globalThis.clients = { matchAll: async () => [], openWindow: async (url) => void (opened = url) };
globalThis.registration = { scope: "/", showNotification: async () => {} };
await import("../../../sdk/carillon-webpush.js");

const subscription = {
  options: { applicationServerKey: null },
  toJSON: () => ({ endpoint: "https://push.example.org/1", keys: { p256dh: "k", auth: "a" } }),
};
const pushManager = { getSubscription: async () => null, subscribe: async () => subscription };

async function dispatch(type, event) {
  let until;
  listeners[type]({ ...event, waitUntil: (promise) => (until = promise) });
  await until;
}

const commands = {
  async start({ url }) {
    await CarillonWebPush.subscribe({ url, appkey: "1000000001", registration: { pushManager } });
    emit({ event: { type: "welcome" } });
  },
  async notification({ event, msgid, click }) {
    const push = { type: "push", msgid, is_notif: 1, content: "text", click };
    if (event === "shown") await dispatch("push", { data: { json: () => push } });
    const notification = { data: { carillon: push }, close() {} };
    opened = null;
    if (event === "clicked") await dispatch("notificationclick", { notification });
    if (event === "dismissed") await dispatch("notificationclose", { notification });
    emit({ returned: opened });
  },
  close() {
    emit({ closed: true });
    process.stdin.destroy();
  },
};

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const command = JSON.parse(line);
  commands[command.do](command);
});
