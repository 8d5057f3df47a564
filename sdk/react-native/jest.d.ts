import type { DeviceEvent, Push } from "./index";

export { Carillon, CarillonError } from "./index";

/** Calls the handler that the app gave to `start`. */
export function emit(name: "onPush" | "onNotification" | "onClick", push: Push): Promise<unknown>;
export function emit(name: "onEvent", event: DeviceEvent): Promise<unknown>;
