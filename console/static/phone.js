// The virtual phone: a device of the SDK that shows its pushes as a phone does.

import { Device } from "./carillon-device.js";
import * as webPush from "./phone-subscription.js";

const MAX_NOTIFICATIONS = 50;
const MAX_EVENTS = 200;
const at = (id) => document.getElementById(id);
const root = at("phone");
const { url, appkey } = root.dataset;
const texts = JSON.parse(root.dataset.texts);
const NOTIFICATIONS_KEY = `carillon-notifications-${appkey}`;

let device = null;
let notifications = JSON.parse(sessionStorage.getItem(NOTIFICATIONS_KEY) ?? "[]");
let badge = 0;

function text(name, values = {}) {
  return texts[name].replace(/\{(\w+)\}/g, (_, key) => String(values[key] ?? ""));
}

function note(name, values) {
  const line = document.createElement("li");
  const time = document.createElement("time");
  time.textContent = new Date().toLocaleTimeString();
  line.append(time, " ", text(name, values));
  at("events").prepend(line);
  while (at("events").childElementCount > MAX_EVENTS) at("events").lastElementChild.remove();
}

function showState(name, values) {
  at("state").textContent = text(name, values);
  root.dataset.state = name;
}

function report(event, msgid) {
  device.report(event, msgid); // sent once there is a connection
  note(event, { msgid });
}

// --- pushes

async function onPush(push) {
  if (!(await webPush.isFirst(push))) return;
  if (push.badge !== undefined) showBadge(push.badge === -1 ? badge + 1 : push.badge);
  if (!push.is_notif) {
    note("passed", push);
    return;
  }
  notifications = [push, ...notifications].slice(0, MAX_NOTIFICATIONS);
  showNotifications();
  report("shown", push.msgid);
}

function showBadge(count) {
  badge = count;
  at("badge").textContent = String(badge);
  at("badge").hidden = badge <= 0;
}

function showNotifications() {
  sessionStorage.setItem(NOTIFICATIONS_KEY, JSON.stringify(notifications));
  at("notifications").replaceChildren(...notifications.map(notificationOf));
  at("nothing").hidden = notifications.length > 0;
}

function notificationOf(push) {
  const item = at("notification").content.firstElementChild.cloneNode(true);
  const { action = 0, param } = push.click ?? {};
  const effect = texts[`action${action}`] ? text(`action${action}`, { param }) : "";
  item.querySelector(".phone-title").textContent = push.title ?? "";
  item.querySelector(".phone-content").textContent = push.content;
  item.querySelector(".phone-effect").textContent = effect;
  item.querySelector("[data-does=dismissed]").hidden = push.removable === false;
  item.addEventListener("click", ({ target }) => {
    const does = target.closest("button")?.dataset.does ?? "clicked"; // a tap anywhere on it, as on a phone
    notifications = notifications.filter(({ msgid }) => msgid !== push.msgid);
    showNotifications();
    if (does === "clicked") showBadge(0);
    report(does, push.msgid);
  });
  return item;
}

// --- the connection

function onEvent(event) {
  switch (event.type) {
    case "welcome":
      note(event.new ? "registered" : "connected");
      showState("online");
      at("token").textContent = event.token;
      showSubscription();
      showDevice().catch(() => {});
      break;
    case "disconnected":
      note("disconnected", event);
      showState("lost", { seconds: Math.ceil(event.retry_ms / 1000) });
      break;
    case "ended":
      showState("ended", event);
      break;
  }
}

async function goOnline() {
  const { storage, key: storageKey } = webPush.phone;
  device = new Device(url, appkey, { storage, storageKey, onPush, onEvent });
  showState("connecting");
  at("go-online").hidden = true;
  at("go-offline").hidden = false;
  await device.connect().catch(() => {}); // what goes wrong comes as an event too
}

async function goOffline() {
  at("go-offline").hidden = true;
  at("go-online").hidden = false;
  await device.close();
  showState("offline");
}

async function takeNewPhone() {
  if (webPush.isSubscribed()) await webPush.unsubscribe(device).catch(() => {}); // the old phone may be gone
  await device.close();
  webPush.phone.storage.removeItem(webPush.phone.key);
  sessionStorage.removeItem(NOTIFICATIONS_KEY);
  location.reload();
}

// --- Web Push

function showSubscription(error) {
  if (!webPush.isPossible()) return;
  const problem = error ? "failed" : webPush.obstacle();
  const subscribed = webPush.isSubscribed();
  const name = problem ?? (subscribed ? "on" : "off");
  at("web-push").dataset.state = name;
  at("web-push-state").textContent = text(`web_push_${name}`, { origin: location.origin, reason: error?.message });
  at("subscribe").hidden = subscribed || (problem !== undefined && problem !== "failed");
  at("unsubscribe").hidden = !subscribed;
}

/** Does what a button or the start asks for, and shows what came of it. */
async function changeSubscription(change) {
  for (const name of ["subscribe", "unsubscribe"]) at(name).disabled = true;
  const error = await change(device).then(() => null, (failure) => failure);
  for (const name of ["subscribe", "unsubscribe"]) at(name).disabled = false;
  showSubscription(error);
}

// --- the device's alias and tags

async function showDevice() {
  const { alias, stags, tags } = await device.getDevice();
  at("alias").textContent = alias ?? texts.none;
  at("stags").textContent = stags.join(", ") || texts.none;
  at("tags").textContent = tags.join(", ") || texts.none;
}

const wordsOf = (value) => value.split(",").map((word) => word.trim()).filter(Boolean);

const CHANGES = {
  alias: (value) => (value.trim() ? device.setAlias(value.trim()) : device.clearAlias()),
  stags: async (value) => replace(wordsOf(value), (await device.getDevice()).stags, device.addStags, device.removeStags),
  tags: async (value) =>
    replace(wordsOf(value).map(Number), (await device.getDevice()).tags, device.addTags, device.removeTags),
};

async function replace(wanted, present, add, remove) {
  const added = wanted.filter((tag) => !present.includes(tag));
  const removed = present.filter((tag) => !wanted.includes(tag));
  if (removed.length) await remove(removed);
  if (added.length) await add(added);
}

document.addEventListener("submit", async (event) => {
  const name = event.target.dataset.changes;
  if (!name) return;
  event.preventDefault();
  try {
    await CHANGES[name](new FormData(event.target).get(name));
    await showDevice();
    at("answer").textContent = texts.saved;
  } catch (error) {
    at("answer").textContent = text("refused", { reason: error.message });
  }
});

at("go-offline").addEventListener("click", goOffline);
at("go-online").addEventListener("click", goOnline);
at("new-phone").addEventListener("click", takeNewPhone);
const showTime = () => {
  at("clock").textContent = new Date().toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
};
setInterval(showTime, 10_000);
showTime();
showNotifications();
await webPush.takeSubscribed();
goOnline();
if (webPush.isPossible()) {
  at("subscribe").addEventListener("click", () => changeSubscription(webPush.subscribe));
  at("unsubscribe").addEventListener("click", () => changeSubscription(webPush.unsubscribe));
}
if (webPush.isSubscribed()) {
  await webPush.onWorkerPush((push) => note("passed", push));
  if (webPush.isPossible() && !webPush.obstacle()) await changeSubscription(webPush.renew);
}
