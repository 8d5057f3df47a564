/** A push, as docs/devices.md describes its fields. */
export interface Push {
  type: "push";
  msgid: number;
  /** 1: show a notification; 0: give the push to the app only. */
  is_notif: 0 | 1;
  content: string;
  /** When the push expires, in milliseconds since 1970 UTC. */
  expires_at: number;
  title?: string;
  sound?: boolean;
  vibrate?: boolean;
  removable?: boolean;
  click?: { action: number; param?: unknown };
  badge?: number;
  extra?: string;
  /** Over Web Push, where a message has 4 KB: the fields that were cut or left out. */
  shortened?: string[];
}

export interface Welcome {
  type: "welcome";
  token: string;
  key: string;
  /** The agreed heartbeat, in seconds. */
  heartbeat: number;
  /** Whether the device was registered just now. */
  new: boolean;
}

export interface Goodbye {
  type: "goodbye";
  reason: string;
  retry_after_ms?: number;
}

/** An error that answers no request. */
export interface ErrorFrame {
  type: "error";
  code: number;
  desc: string;
}

export interface Disconnected {
  type: "disconnected";
  reason: string;
  retry_ms: number;
}

/** A final goodbye came; the device does not reconnect. */
export interface Ended {
  type: "ended";
  reason: FinalReason;
}

export type DeviceEvent = Welcome | Goodbye | ErrorFrame | Disconnected | Ended;

/** Any frame of the protocol. */
export interface Frame {
  type: string;
  [field: string]: unknown;
}

export type FinalReason = "unauthorized" | "replaced" | "protocol";

/** The reasons of final goodbyes, after which a device does not reconnect, and their meaning. */
export const FINAL: Readonly<Record<FinalReason, string>>;

/** Attributes of the device: region, carrier, channel, sdk_version, brand, model, resolution, os_version, app_version. */
export type Attributes = Record<string, string>;

/** A JWT of the app's server, or a function that fetches one. */
export type Proof = string | (() => string | Promise<string>);

/** Like localStorage, or like a Map; results may be promises. */
export type Storage =
  | {
      getItem(key: string): string | null | undefined | Promise<string | null | undefined>;
      setItem(key: string, text: string): unknown;
    }
  | {
      get(key: string): string | null | undefined | Promise<string | null | undefined>;
      set(key: string, text: string): unknown;
    };

export interface Options {
  /** Default: a Map, which forgets the device at the end of the program. */
  storage?: Storage;
  /** Separates several devices in one storage. */
  storageKey?: string;
  /** Gets each push once; when its promise is fulfilled, the push is saved, then acknowledged. */
  onPush?: (push: Push) => unknown;
  onEvent?: (event: DeviceEvent) => unknown;
  attributes?: Attributes;
  /** The requested heartbeat, in seconds. */
  heartbeat?: number;
  /** Replaces the global class, for Node.js 20. */
  WebSocket?: new (url: string, protocol: string) => unknown;
  random?: () => number;
  timers?: { set: (callback: () => void, ms: number) => unknown; clear: (timer: any) => void };
}

export type DeviceErrorKind = "ended" | "refused" | "unavailable" | "deadline";

export class DeviceError extends Error {
  constructor(kind: DeviceErrorKind, message: string, details?: { reason?: string; code?: number });
  readonly name: "DeviceError";
  readonly kind: DeviceErrorKind;
  /** The final goodbye's, for the kind "ended". */
  readonly reason?: string;
  /** For the kind "refused"; from 500 on the request may be repeated. */
  readonly code?: number;
}

/** A device, which stays connected from `connect` until `close` or a final goodbye. */
export class Device {
  /** `url` begins with ws:// or wss://. TypeError: it does not, or there is no WebSocket class. */
  constructor(url: string, appkey: string, options?: Options);
  /** The token that names the device; null before the first welcome. */
  get token(): string | null;
  /**
   * Fulfilled once welcomed. DeviceError "ended"; "deadline": goes on trying; "unavailable": closed meanwhile. Any other
   * error: the stored state cannot be read.
   */
  connect(ms?: number): Promise<void>;
  /** Fulfilled when the device was closed. DeviceError "ended": a final goodbye came. */
  ended(): Promise<void>;
  /** Acknowledges the handled pushes, then disconnects and does not reconnect. */
  close(): Promise<void>;
  // Requests are rejected with DeviceError "refused", "unavailable" or "deadline".
  /** `proof` shows that the alias is the user's; a refused one is fetched again, three times in all. */
  setAlias(alias: string, options?: { proof?: Proof }): Promise<Frame>;
  clearAlias(): Promise<Frame>;
  addTags(tags: number[], options?: { proof?: Proof }): Promise<Frame>;
  removeTags(tags: number[]): Promise<Frame>;
  addStags(stags: string[], options?: { proof?: Proof }): Promise<Frame>;
  removeStags(stags: string[]): Promise<Frame>;
  setAttributes(device: Attributes): Promise<Frame>;
  /**
   * Sets where a channel, such as "fcm" or "webpush", reaches the device while it has no connection. Call it at each
   * start: a known address changes nothing. `keys`: those of a push subscription, for "webpush" alone.
   */
  setAddress(
    channel: string,
    address: string,
    options?: { keys?: { p256dh: string; auth: string } },
  ): Promise<Frame>;
  clearAddress(channel: string): Promise<Frame>;
  /** `channels`: those on which the device has an address; absent if on none. */
  getDevice(): Promise<{
    alias: string | null;
    tags: number[];
    stags: string[];
    device: Attributes;
    channels?: string[];
  }>;
  // Reports are sent at once, and over each later connection until the service confirms that they will not be lost.
  report(event: "shown" | "clicked" | "dismissed", msgid: number): void;
  activity(event: "open" | "login" | "logout"): void;
  /** Sends a frame with a new id; fulfilled by the ok frame that answers it. */
  request(frame: Frame, ms?: number): Promise<Frame>;
  /** Sends a frame unchanged. DeviceError "unavailable": no connection. */
  send(frame: Frame): void;
}
