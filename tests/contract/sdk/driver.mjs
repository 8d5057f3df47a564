// Runs one device of the JavaScript SDK for the tests, with the commands and lines of driver.py.
import { readFileSync, writeFileSync } from "node:fs";
import readline from "node:readline";
import { Device } from "../../../sdk/carillon-device.js";

console.warn = () => {};
const emit = (line) => process.stdout.write(JSON.stringify(line) + "\n");

const pending = [];
const elapsed = [];
let now_ms = 0;
const timers = {
  set(callback, ms) {
    const timer = { callback, ms: Math.round(ms), end_ms: now_ms + Math.round(ms) };
    const index = elapsed.indexOf(timer.ms);
    if (ms === 0) setTimeout(callback, 0);
    else if (index >= 0) elapsed.splice(index, 1), queueMicrotask(callback);
    else pending.push(timer);
    return timer;
  },
  clear(timer) {
    const index = pending.indexOf(timer);
    if (index >= 0) pending.splice(index, 1);
  },
  elapse(ms) {
    const index = pending.findIndex((timer) => timer.ms === ms);
    if (index < 0) elapsed.push(ms);
    else pending.splice(index, 1)[0].callback();
  },
  move(ms) {
    now_ms += ms;
    for (const timer of pending.filter(({ end_ms }) => end_ms <= now_ms)) this.clear(timer), timer.callback();
  },
};

function stored(path) {
  return {
    async get() {
      try {
        return readFileSync(path, "utf8");
      } catch {
        return undefined;
      }
    },
    async set(key, text) {
      writeFileSync(path, text);
    },
  };
}

function onPush(push) {
  emit({ push });
  if (push.content === "fail") throw new Error("the app's own error");
  if (push.content === "hang") return new Promise(() => {});
  if (push.content === "slow") return new Promise((resolve) => timers.set(resolve, 5000));
}

let device;
const commands = {
  start({ url, state, attributes, heartbeat, chance = 0.5 }) {
    const onEvent = (event) => emit({ event });
    const storage = stored(state);
    device = new Device(url, "1000000001", { storage, attributes, heartbeat, onPush, onEvent, timers, random: () => chance });
    device.connect().then(
      () => emit({ connect: "welcomed" }),
      (error) => emit({ connect: error.kind ?? "storage" }),
    );
  },
  elapse: ({ ms }) => timers.elapse(ms),
  move({ ms }) {
    timers.move(ms);
    emit({ moved: true });
  },
  async call({ method, arguments: values }) {
    const options = values.at(-1);
    if (Array.isArray(options?.proof)) values[values.length - 1] = { proof: async () => options.proof.shift() };
    const name = method.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
    try {
      emit({ returned: (await device[name](...values)) ?? null });
    } catch (error) {
      emit({ raised: [error.kind, error.code ?? null] });
    }
  },
  async close() {
    await device.close();
    emit({ closed: true });
    process.stdin.destroy();
  },
};

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const command = JSON.parse(line);
  commands[command.do](command);
});
