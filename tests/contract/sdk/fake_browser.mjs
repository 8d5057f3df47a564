// What a browser has and Node has not, as far as carillon-webpush.js uses it: page and worker in one.

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
export const shown = [];
export const seen = { opened: null };
globalThis.clients = { matchAll: async () => [], openWindow: async (url) => void (seen.opened = url) };
globalThis.registration = { scope: "/", showNotification: async (...notification) => void shown.push(notification) };
const subscription = {
  options: { applicationServerKey: null },
  toJSON: () => ({ endpoint: "https://push.example.org/1", keys: { p256dh: "k", auth: "a" } }),
};
export const pushManager = { getSubscription: async () => null, subscribe: async () => subscription };

export async function dispatch(type, event) {
  let until;
  listeners[type]({ ...event, waitUntil: (promise) => (until = promise) });
  await until;
}
