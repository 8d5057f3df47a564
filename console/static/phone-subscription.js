// The virtual phone as a browser that is subscribed to Web Push, so that pushes reach it while no page is open.
//
// One phone of a browser is subscribed: its identity is in localStorage, and the tab that has the lock is this phone.
// Other tabs keep theirs in sessionStorage. The worker's file is made by the console for each app.

import "./carillon-webpush.js";

const root = document.getElementById("web-push");
const { appkey, worker, requestsUrl: url, origins, hasKey } = root.dataset;
const DEVICE_KEY = `carillon-phone-${appkey}`;
const WebPush = globalThis.CarillonWebPush;
WebPush.database = `carillon-${appkey}`;

/** The storage of this tab's phone, and the key under which it is there. */
export const phone = { storage: sessionStorage, key: DEVICE_KEY };

export const isSubscribed = () => phone.storage === localStorage;

/** Takes the subscribed phone of this browser, if there is one that no other tab has. */
export async function takeSubscribed() {
  if (localStorage.getItem(DEVICE_KEY) !== null && (await hasLock())) phone.storage = localStorage;
}

let giveBack = null;

const hasLock = () =>
  new Promise((resolve) => {
    navigator.locks.request(DEVICE_KEY, { ifAvailable: true }, (lock) => {
      resolve(lock !== null);
      return lock && new Promise((given) => (giveBack = given));
    });
  });

/** Why this browser cannot be subscribed here, as the name of a text; undefined if it can. */
export function obstacle() {
  if (!globalThis.isSecureContext) return "insecure";
  if (!navigator.serviceWorker || !globalThis.PushManager || !globalThis.Notification) return "unsupported";
  if (!JSON.parse(origins).includes(location.origin)) return "origin";
  if (Notification.permission === "denied") return "denied";
  if (!isSubscribed() && localStorage.getItem(DEVICE_KEY) !== null) return "elsewhere";
}

export const isPossible = () => hasKey === "true";

/** Subscribes the phone after a click. `device` stores its state in the other storage from then on. */
export async function subscribe(device) {
  if ((await Notification.requestPermission()) !== "granted") return;
  if (obstacle() || !(await hasLock())) return;
  move(device, localStorage);
  await renew();
}

/** Hands the subscription over once more, at each start: the browser or the app's key may have changed it. */
export async function renew() {
  const { token, key } = JSON.parse(phone.storage.getItem(DEVICE_KEY));
  await navigator.serviceWorker.register(worker, { scope: location.pathname });
  const registration = await navigator.serviceWorker.ready;
  await WebPush.subscribe({ url, appkey, registration, token, key, home: location.origin + location.pathname });
}

/** Ends the subscription; the phone is that of this tab alone again. */
export async function unsubscribe(device) {
  const registration = await navigator.serviceWorker.getRegistration();
  if (registration) await WebPush.unsubscribe(registration);
  move(device, sessionStorage);
  giveBack();
}

function move(device, storage) {
  storage.setItem(DEVICE_KEY, phone.storage.getItem(DEVICE_KEY));
  phone.storage.removeItem(DEVICE_KEY);
  device.storage = phone.storage = storage;
}

/** Whether a push over the connection is to be shown: the worker may have shown it. */
export const isFirst = async ({ msgid }) => !isSubscribed() || WebPush.isFirst(msgid);

/** Calls back with each push for the app itself that came to the worker, now and later. */
export async function onWorkerPush(callback) {
  const take = async () => (await WebPush.takePushes()).forEach(callback);
  navigator.serviceWorker.addEventListener("message", take);
  await take();
}
