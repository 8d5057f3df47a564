import type { Push } from "./carillon-device.js";

/** How a browser is subscribed to an app's pushes. */
export interface SubscribeOptions {
  /** https://HOST/device/v1 */
  url: string;
  appkey: string;
  registration: ServiceWorkerRegistration;
  /** Those of a device that is registered already, such as one with a connection. Default: the stored or a new one. */
  token?: string;
  key?: string;
  /** The page that a click on a notification opens. Default: the scope of the service worker. */
  home?: string;
}

export interface WebPush {
  /** Subscribes, or renews the subscription; call it at each start of a page whose user has agreed. */
  subscribe(options: SubscribeOptions): Promise<{ token: string }>;
  unsubscribe(registration: ServiceWorkerRegistration): Promise<void>;
  /** Takes the pushes that came for the app itself (is_notif 0). */
  takePushes(): Promise<Push[]>;
  /** Whether this browser has not had the push yet; from then on it has. For pushes that come over a connection. */
  isFirst(msgid: number): Promise<boolean>;
  clearBadge(): Promise<void>;
  /** How a push is shown: title and options of the notification. A site may replace it in its service worker. */
  notification: (push: Push) => [string, NotificationOptions];
  /** The name of the IndexedDB database. A site of several apps gives each its own, in its service worker and pages. */
  database: string;
}

declare global {
  /** Defined by `importScripts("carillon-webpush.js")` or `import "carillon-device/webpush"`, in workers and pages. */
  var CarillonWebPush: WebPush;
}
