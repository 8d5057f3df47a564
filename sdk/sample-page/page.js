// A device in a page: connects to what is typed in or what the page's address names, and lists the pushes.
// A site of your own imports these two from the npm package: "carillon-device" and "carillon-device/webpush".
import { Device, FINAL } from "../carillon-device.js";
import "../carillon-webpush.js";

const at = (id) => document.getElementById(id);
const say = (text) => (at("state").textContent = text);
let device = null;

async function onPush(push) {
  if (!(await CarillonWebPush.isFirst(push.msgid))) return; // the service worker has had it
  at("pushes").prepend(Object.assign(document.createElement("li"), { textContent: [push.title, push.content].filter(Boolean).join(": ") }));
  if (push.is_notif) device.report("shown", push.msgid);
}

function onEvent(event) {
  if (event.type === "welcome") say(`connected, token ${event.token}`);
  if (event.type === "disconnected") say(`not connected: ${event.reason}; again in ${Math.ceil(event.retry_ms / 1000)} s`);
  if (event.type === "ended") say(FINAL[event.reason]);
}

async function connect(event) {
  event?.preventDefault();
  await device?.close();
  const [url, appkey] = [at("url").value, at("appkey").value];
  say("connecting");
  try {
    device = new Device(url, appkey, { storage: localStorage, storageKey: `carillon ${url} ${appkey}`, onPush, onEvent });
    await device.connect();
    at("subscribe").hidden = !("PushManager" in window); // for pages with HTTPS, and on localhost
    device.activity("open");
  } catch (error) {
    say(String(error));
  }
}

/** Subscribes this browser, so that pushes come also while the page is closed: see worker.js. */
async function subscribe() {
  try {
    if ((await Notification.requestPermission()) !== "granted") return say("notifications are not allowed");
    const registration = await navigator.serviceWorker.register("worker.js");
    const url = at("url").value.replace(/^ws/, "http").replace(":8400/", ":8300/"); // the port for HTTP
    await CarillonWebPush.subscribe({ url, appkey: at("appkey").value, registration, home: location.href });
    say("subscribed");
  } catch (error) {
    say(String(error));
  }
}

async function takePushes() {
  for (const push of await CarillonWebPush.takePushes()) {
    at("pushes").prepend(Object.assign(document.createElement("li"), { textContent: push.content }));
  }
}

at("where").addEventListener("submit", connect);
at("subscribe").addEventListener("click", subscribe);
navigator.serviceWorker?.addEventListener("message", takePushes);
const named = new URLSearchParams(location.search);
for (const name of ["url", "appkey"]) at(name).value = named.get(name) ?? "";
if (named.has("url") && named.has("appkey")) connect();
takePushes().catch(() => {});
