/**
 * Pushes of Carillon by Web Push, also while no page is open. One file for the site's service worker and for its pages:
 * `importScripts("carillon-webpush.js")` or `import "./carillon-webpush.js"`. Both get `CarillonWebPush`; in the worker
 * it also shows pushes, each once, and reports them. docs/devices.md describes it.
 *
 * @typedef {import("./carillon-device.js").Push} Push
 * @typedef {{url: string, appkey: string, token: string, key: string, home?: string}} Device
 */
(() => {
  const [MAX_SEEN, MAX_REPORTS, MAX_INBOX, MAX_ADDRESS] = [1000, 200, 100, 8192];
  const [OPEN_URL, RICH_MEDIA, DOWNLOAD] = [2, 7, 8]; // the click actions that name a web page
  const TAG = "carillon-";
  const isWorker = typeof ServiceWorkerGlobalScope !== "undefined" && self instanceof ServiceWorkerGlobalScope;

  // The state of the device, which its pages and its worker share.

  /** @type {Promise<IDBDatabase> | null} */
  let opened = null;

  const database = () => (opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(api.database, 1);
    request.onupgradeneeded = () => request.result.createObjectStore("values");
    request.onsuccess = () => {
      request.result.onversionchange = request.result.onclose = () => (request.result.close(), (opened = null));
      resolve(request.result);
    };
    request.onerror = () => ((opened = null), reject(request.error));
  }));

  const read = async (/** @type {string} */ name) => {
    const get = (await database()).transaction("values").objectStore("values").get(name);
    return new Promise((resolve, reject) => ((get.onsuccess = () => resolve(get.result)), (get.onerror = () => reject(get.error))));
  };

  /**
   * Replaces values in one transaction: `changes` maps each name to a function from the old value to the new one.
   * @param {Object<string, (old: any) => any>} changes
   */
  const change = async (changes) => {
    const transaction = (await database()).transaction("values", "readwrite", { durability: "strict" });
    const values = transaction.objectStore("values");
    for (const [name, changed] of Object.entries(changes)) {
      const get = values.get(name);
      get.onsuccess = () => values.put(changed(get.result), name);
    }
    return new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve(undefined);
      transaction.onabort = transaction.onerror = () => reject(transaction.error);
    });
  };

  const added = (/** @type {any} */ item, /** @type {number} */ most) => (/** @type {any[]} */ old) => [...(old ?? []), item].slice(-most);

  // Frames over HTTP.

  /** Sends a frame of the device; fulfilled by the answer. An error has the answer's `code`, 0 without an answer. */
  const send = async (/** @type {any} */ device, /** @type {any} */ frame) => {
    const { url, appkey, token, key } = device;
    let answer = { type: "error", code: 0, desc: "no answer" };
    try {
      // Without a content type the browser asks for no permission first, which would be a request more.
      const body = new Blob([JSON.stringify({ ...frame, appkey, token, key })]);
      const response = await fetch(url, { method: "POST", body, keepalive: true, credentials: "omit", redirect: "error" });
      const answered = await response.json();
      answer = typeof answered?.type === "string" ? answered : { ...answer, desc: "the answer is no frame" };
    } catch (error) {
      answer.desc = String(error);
    }
    if (answer.type !== "error") return answer;
    throw Object.assign(new Error(answer.desc), { name: "CarillonError", code: answer.code });
  };

  let sending = Promise.resolve();

  /** Sends the reports that wait, oldest first. Those that get no answer wait for the next event of the worker. */
  const sendReports = () => (sending = sending.then(async () => {
    const device = await read("device");
    for (const report of device ? ((await read("reports")) ?? []) : []) {
      try {
        await send(device, report.frame);
      } catch (error) {
        if (![400, 401].includes(error.code)) return; // repeated, these would be refused again
      }
      await change({ reports: (old) => (old ?? []).filter(({ id }) => id !== report.id) });
    }
  }).catch((error) => console.warn("carillon: reports wait:", error)));

  const report = async (/** @type {string} */ event, /** @type {number} */ msgid) => {
    await change({ reports: added(numbered({ type: "report", event, msgid }), MAX_REPORTS) });
    await sendReports();
  };

  const numbered = (/** @type {any} */ frame) => ({ id: crypto.randomUUID(), frame });

  // Pages.

  /**
   * Subscribes this browser to the app's pushes, or renews the subscription; call it at each start of a page whose user
   * has agreed. Registers the device unless `token` and `key` are given, such as those of a connected device.
   *
   * @param {{url: string, appkey: string, registration: ServiceWorkerRegistration, token?: string, key?: string,
   *   home?: string}} options `url`: https://HOST/device/v1; `home`: the page that a click opens
   */
  const subscribe = async ({ url, appkey, registration, token, key, home }) => {
    const known = await read("device");
    let device = token && key ? { url, appkey, token, key, home } : { ...known, url, home };
    if (device.appkey !== appkey || !device.key) {
      const welcome = await send({ url, appkey }, { type: "hello" });
      device = { url, appkey, token: welcome.token, key: welcome.key, home };
    }
    await change({ device: () => device });
    await setAddress(device, registration);
    return { token: device.token };
  };

  const setAddress = async (/** @type {any} */ device, /** @type {ServiceWorkerRegistration} */ registration) => {
    const answer = await fetch(`${device.url}/webpush-key?appkey=${encodeURIComponent(device.appkey)}`);
    const { key: applicationServerKey, desc } = await answer.json();
    if (!applicationServerKey) throw Object.assign(new Error(desc), { name: "CarillonError", code: 400 });
    let subscription = await registration.pushManager.getSubscription();
    if (subscription && encoded(subscription.options.applicationServerKey) !== applicationServerKey) {
      await subscription.unsubscribe(); // it is bound to a former key of the app, which counts no more
      subscription = null;
    }
    subscription ??= await registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey });
    const { endpoint: address, keys } = subscription.toJSON();
    await send(device, { type: "set_address", channel: "webpush", address, keys });
  };

  /** Ends the subscription; the device stays registered. @param {ServiceWorkerRegistration} registration */
  const unsubscribe = async (registration) => {
    await (await registration.pushManager.getSubscription())?.unsubscribe();
    const device = await read("device");
    if (device) await send(device, { type: "clear_address", channel: "webpush" });
  };

  /** Takes the pushes that came for the app itself (is_notif 0) while no page was open. @returns {Promise<Push[]>} */
  const takePushes = async () => {
    let taken = [];
    await change({ inbox: (old) => ((taken = old ?? []), []) });
    return taken;
  };

  /** Whether this browser has not had the push yet; from then on it has. For pushes that come over a connection. */
  const isFirst = async (/** @type {number} */ msgid) => {
    let first = false;
    await change({ seen: (old = []) => ((first = !old.includes(msgid)), first ? added(msgid, MAX_SEEN)(old) : old) });
    return first;
  };

  const clearBadge = async () => {
    await change({ badge: () => 0 });
    await navigator.clearAppBadge?.();
  };

  const encoded = (/** @type {ArrayBuffer | null} */ bytes) =>
    btoa(String.fromCharCode(...new Uint8Array(bytes ?? []))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

  /** How a push is shown; a site may replace it. @param {Push} push @returns {[string, NotificationOptions]} */
  const notification = (push) => [push.title ?? "", { body: push.content, silent: push.sound === false }];

  // `database`: the name of the IndexedDB database; a site of several apps gives each its own, in worker and pages.
  const api = { database: "carillon", subscribe, unsubscribe, takePushes, isFirst, clearBadge, notification };
  Object.assign(globalThis, { CarillonWebPush: api });
  if (!isWorker) return;

  // The service worker.

  const worker = /** @type {any} */ (self);
  const isPush = (/** @type {any} */ push) => push?.type === "push" && Number.isSafeInteger(push.msgid);

  worker.addEventListener("push", (event) => {
    let push = null;
    try {
      push = event.data?.json();
    } catch {
      return; // none of Carillon's
    }
    if (isPush(push)) event.waitUntil(received(push));
  });

  /**
   * Shows a push and reports it. It counts as seen once it is shown: if the worker is stopped in between, the browser
   * brings it again, and its tag lets it take its own place.
   */
  const received = async (/** @type {Push} */ push) => {
    const acknowledged = numbered({ type: "ack", msgids: [push.msgid] });
    if (((await read("seen")) ?? []).includes(push.msgid)) {
      await change({ reports: added(acknowledged, MAX_REPORTS) });
      return sendReports();
    }
    if (push.is_notif) await show(push);
    const shown = push.is_notif ? [numbered({ type: "report", event: "shown", msgid: push.msgid })] : [];
    await change({
      seen: added(push.msgid, MAX_SEEN),
      reports: (old) => [...(old ?? []), acknowledged, ...shown].slice(-MAX_REPORTS),
      ...(push.is_notif ? {} : { inbox: added(push, MAX_INBOX) }),
    });
    if (!push.is_notif) {
      for (const page of await worker.clients.matchAll({ includeUncontrolled: true })) page.postMessage({ type: "carillon-push" });
    }
    await sendReports();
  };

  const show = async (/** @type {Push} */ push) => {
    const [title, options] = api.notification(push);
    await worker.registration.showNotification(title, { ...options, tag: TAG + push.msgid, data: { carillon: push } });
    if (push.badge === undefined) return;
    let badge = push.badge;
    await change({ badge: (old) => (badge = push.badge === -1 ? (old ?? 0) + 1 : push.badge) });
    await worker.navigator.setAppBadge?.(badge).catch(() => {}); // a browser may have no icon to put it on
  };

  /** Calls back with the push of a notification of Carillon's. */
  const on = (/** @type {string} */ type, /** @type {(push: Push, notification: Notification) => any} */ callback) =>
    worker.addEventListener(type, (event) => {
      const push = event.notification.data?.carillon;
      if (isPush(push)) event.waitUntil(callback(push, event.notification));
    });

  on("notificationclick", async (push, notification) => {
    notification.close();
    const opening = open(push).catch((error) => console.warn("carillon: nothing opened:", error));
    await Promise.all([opening, report("clicked", push.msgid)]);
  });

  on("notificationclose", (push) => report("dismissed", push.msgid));

  /** Returns the address of a web page; null for anything else. */
  const webAddress = (/** @type {unknown} */ param) => {
    const text = typeof param === "string" ? param.trim() : "";
    if (text.length > MAX_ADDRESS || !/^https?:\/\/[^/?#]/i.test(text)) return null;
    return text.replace(/^https?/i, (scheme) => scheme.toLowerCase());
  };

  /** Returns the address of the web page that a click names; null if it names none. */
  const pageOf = (/** @type {{action?: unknown, param?: any}} */ { action, param }) => {
    if (action === RICH_MEDIA) return webAddress(param?.url ?? param);
    return action === OPEN_URL || action === DOWNLOAD ? webAddress(param) : null;
  };

  /** Opens the web page that a click names, or else the site itself, in a page that is open already if there is one. */
  const open = async (/** @type {Push} */ push) => {
    const address = pageOf(push.click ?? {});
    if (address) return worker.clients.openWindow(address);
    const home = (await read("device"))?.home ?? worker.registration.scope;
    const pages = await worker.clients.matchAll({ type: "window", includeUncontrolled: true });
    const page = pages.find((/** @type {WindowClient} */ { url }) => url === home) ?? pages[0];
    return page ? page.focus() : worker.clients.openWindow(home);
  };

  worker.addEventListener("pushsubscriptionchange", (event) => {
    event.waitUntil(read("device").then((device) => device && setAddress(device, worker.registration)));
  });
})();
