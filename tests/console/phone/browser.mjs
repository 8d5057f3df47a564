// Runs the virtual phone's scripts with what they use of a browser, presses each button that is shown, and prints the
// states that the page went through and the calls for the subscription. The first argument is the browser as JSON.

const browser = { permission: "default", asked: "granted", kept: null, isHeld: false, isSecure: true, ...JSON.parse(process.argv[2]) };
const NAMES = ["on", "off", "elsewhere", "insecure", "unsupported", "origin", "denied", "failed"];
const KEY = "carillon-phone-7";

const elements = new Map();
const element = (id) => {
  const made = { dataset: {}, hidden: false, replaceChildren() {}, prepend() {}, childElementCount: 0 };
  made.addEventListener = (type, callback) => (made[type] = callback);
  if (!elements.has(id)) elements.set(id, made);
  return elements.get(id);
};
const storage = () => {
  const values = new Map();
  return {
    getItem: (key) => values.get(key) ?? null,
    setItem: (key, value) => values.set(key, value),
    removeItem: (key) => values.delete(key),
  };
};

const texts = Object.fromEntries(NAMES.map((name) => [`web_push_${name}`, `${name} {origin} {reason}`]));
for (const name of ["connecting", "online", "registered", "connected", "none"]) texts[name] = name;
Object.assign(element("phone").dataset, { url: "ws://gateway/", appkey: "7", texts: JSON.stringify(texts) });
Object.assign(element("web-push").dataset, {
  appkey: "7", worker: "/apps/7/phone/worker", requestsUrl: "http://v2/device/v1", origins: '["https://console"]', hasKey: "true",
});
const calls = [];
const registration = {};
const serviceWorker = {
  register: async (url, { scope }) => calls.push(["register", url, scope]),
  ready: Promise.resolve(registration),
  getRegistration: async () => registration,
  addEventListener() {},
};
const locks = { request: (name, options, callback) => callback(browser.isHeld ? null : {}) };
const globals = {
  document: { getElementById: element, createElement: () => ({ append() {} }), addEventListener() {} },
  location: { origin: browser.origin ?? "https://console", pathname: "/apps/7/phone" },
  navigator: { locks, ...(browser.isSecure && { serviceWorker }) },
  Notification: {
    permission: browser.permission,
    requestPermission: async () => (Notification.permission = browser.asked),
  },
  isSecureContext: browser.isSecure,
  localStorage: storage(),
  sessionStorage: storage(),
  setInterval() {},
  ...(!browser.hasNoPush && { PushManager: class {} }),
};
for (const [name, value] of Object.entries(globals)) Object.defineProperty(globalThis, name, { value, writable: true });
if (browser.kept) localStorage.setItem(KEY, JSON.stringify({ token: browser.kept, key: "k" }));

await import("./carillon-webpush.js");
Object.assign(CarillonWebPush, {
  subscribe: async ({ url, token, home }) => {
    calls.push(["subscribe", url, token, home]);
    if (browser.error) throw new Error(browser.error);
  },
  unsubscribe: async () => calls.push(["unsubscribe"]),
  takePushes: async () => [],
});

const states = [];
const noteState = async () => {
  await new Promise((next) => setImmediate(next));
  const kept = [localStorage, sessionStorage].map((each) => JSON.parse(each.getItem(KEY))?.token ?? null);
  states.push([element("web-push-state").textContent.trim(), ...kept]);
};
await import("./phone.js");
await noteState();
for (const button of ["subscribe", "unsubscribe"]) {
  if (element(button).hidden) continue;
  element(button).click();
  await noteState();
}
console.log(JSON.stringify({ states, calls, database: CarillonWebPush.database }));
process.exit(0);
