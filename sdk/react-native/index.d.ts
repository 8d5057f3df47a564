/** A push. What an iPhone brings has the fields `msgid`, `is_notif`, `title`, `content` and `extra` alone. */
export interface Push {
  type: "push";
  /** Missing on an iPhone whose app has no reports (`carillon app set K --apns-reports on`). */
  msgid?: number;
  /** 1: the phone shows a notification; 0: the push is for the app only. */
  is_notif: 0 | 1;
  content: string;
  /** When the push expires, in milliseconds since 1970 UTC. */
  expires_at?: number;
  title?: string;
  sound?: boolean;
  vibrate?: boolean;
  removable?: boolean;
  click?: { action: number; param?: unknown };
  badge?: number;
  extra?: string;
  /** Over a vendor's service, whose messages are short: the fields that were cut or left out. */
  shortened?: string[];
}

/** The service knows the device. If it `isNew`, set its alias and tags. `ignored`: attributes that were not stored. */
export interface Connected {
  type: "connected";
  isNew: boolean;
  ignored: string[];
}

/** No connection, or no answer; the SDK tries again after `afterMs`. */
export interface Retries {
  type: "retries";
  afterMs: number;
  reason: string;
}

/**
 * The service refuses the device until the app starts again. `reason`: unauthorized, replaced, protocol or storage on
 * Android, revoked or refused on an iPhone.
 */
export interface Ended {
  type: "ended";
  reason: string;
  message: string;
}

/** An iPhone's token is registered, and the phone has lost its key: a silent push brings a code that opens it. */
export interface AwaitsCode {
  type: "awaitsCode";
}

/** An error that answers no request, or an iPhone's Keychain that could not be read or written. */
export interface Failed {
  type: "failed";
  message: string;
}

export type DeviceEvent = Connected | Retries | Ended | AwaitsCode | Failed;

/** Attributes of the device: region, carrier, channel, brand, model, resolution, os_version, app_version. */
export type Attributes = { [name: string]: string };

/** A JWT of the app's server, or a function that fetches one. */
export type Proof = string | (() => string | Promise<string>);

export interface Options {
  /** Android: wss://HOST/device/v1, the gateway's. iPhone: https://HOST/device/v1. */
  url: string;
  appkey: string;
  /** Gets each push for the app itself; it is acknowledged when the promise is fulfilled, and comes again if it is not. */
  onPush?: (push: Push) => unknown;
  /** A notification came while the app runs. */
  onNotification?: (push: Push) => unknown;
  /** The user clicked on a notification, also one that has started the app. */
  onClick?: (push: Push) => unknown;
  onEvent?: (event: DeviceEvent) => unknown;
  attributes?: Attributes;
  /** Android: the requested heartbeat, in seconds. */
  heartbeat?: number;
  /** Android: the name of a drawable, the small icon of notifications. */
  icon?: string;
  /** Android: a click opens the app, and `onClick` goes where it names. Default: false, the SDK opens what it names. */
  opensClicks?: boolean;
  /** iPhone: the app's appkey for builds with tokens of Apple's sandbox, if it is another one. */
  sandboxAppkey?: string;
  /** iPhone: the app group that the app shares with its notification service extension. */
  appGroup?: string;
}

export interface KnownDevice {
  alias: string | null;
  tags: number[];
  stags: string[];
  attributes: Attributes;
}

export type CarillonErrorKind = "refused" | "unavailable" | "deadline" | "ended" | "argument";

export class CarillonError extends Error {
  constructor(kind: CarillonErrorKind, message: string, code?: number);
  readonly name: "CarillonError";
  readonly kind: CarillonErrorKind;
  /** For the kind "refused"; from 500 on the request may be repeated. */
  readonly code?: number;
}

export interface CarillonSdk {
  /** Connects the app; call it at each start, once the user has agreed. Nothing is read, stored or sent before. */
  start(options: Options): Promise<void>;
  /** Disconnects until the next `start`, also after a restart of the app. */
  stop(): Promise<void>;
  // Requests are rejected with CarillonError.
  /** `proof` shows that the alias is the user's; a refused one is fetched again, three times in all. */
  setAlias(alias: string, options?: { proof?: Proof }): Promise<void>;
  clearAlias(): Promise<void>;
  addTags(tags: number[], options?: { proof?: Proof }): Promise<void>;
  removeTags(tags: number[]): Promise<void>;
  addStags(stags: string[], options?: { proof?: Proof }): Promise<void>;
  removeStags(stags: string[]): Promise<void>;
  setAttributes(attributes: Attributes): Promise<void>;
  getDevice(): Promise<KnownDevice>;
  /** Android: where a channel, such as "fcm", reaches the app while it is not connected. Call it at each start. */
  setAddress(channel: string, address: string): void;
  clearAddress(channel: string): void;
  /** Android: takes the data of a message that a vendor's SDK has handed to the app. False: it is not from Carillon. */
  onMessage(data: { [name: string]: string }, shown?: { title?: string; content?: string }): Promise<boolean>;
  /** Reports of a notification that the app shows itself. An iPhone reports "shown" by its extension alone. */
  report(event: "shown" | "clicked" | "dismissed", msgid: number): void;
  activity(event: "open" | "login" | "logout"): void;
  setBadge(count: number): void;
  /** Asks the user whether notifications may be shown; true: they may. */
  requestPermission(): Promise<boolean>;
}

export const Carillon: CarillonSdk;
