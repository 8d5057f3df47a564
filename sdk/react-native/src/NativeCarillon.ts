import type { TurboModule } from "react-native";
import { TurboModuleRegistry } from "react-native";
import type { EventEmitter } from "react-native/Libraries/Types/CodegenTypes";

/** What both platforms implement; index.js is the interface of apps. Codegen reads this file when an app is built. */
export interface Spec extends TurboModule {
  /** `options`: sandboxAppkey, appGroup, attributes, heartbeat, icon and opensClicks, as in index.d.ts. */
  start(url: string, appkey: string, options: { [name: string]: unknown }): Promise<void>;
  stop(): Promise<void>;
  /** Emits what has waited for a listener, then all that comes. */
  listen(): void;
  /** Ends the handling of a push, by the id of its event; null: without an error. */
  handled(eventId: number, error: string | null): void;
  setAlias(alias: string, proof: string | null): Promise<void>;
  clearAlias(): Promise<void>;
  addTags(tags: Array<number>, proof: string | null): Promise<void>;
  removeTags(tags: Array<number>): Promise<void>;
  addStags(stags: Array<string>, proof: string | null): Promise<void>;
  removeStags(stags: Array<string>): Promise<void>;
  setAttributes(attributes: { [name: string]: string }): Promise<void>;
  /** Fulfilled by JSON. */
  getDevice(): Promise<string>;
  setAddress(channel: string, address: string): void;
  clearAddress(channel: string): void;
  takeMessage(data: { [name: string]: string }, title: string | null, content: string | null): Promise<boolean>;
  report(event: string, msgid: number): void;
  activity(event: string): void;
  setBadge(count: number): void;
  requestPermission(): Promise<boolean>;
  /** Each event is JSON: {"type": "push", "id": 1, "push": {…}}, the same of "notification" and "click", or an event of the device. */
  readonly onEvent: EventEmitter<string>;
}

export default TurboModuleRegistry.getEnforcing<Spec>("Carillon");
