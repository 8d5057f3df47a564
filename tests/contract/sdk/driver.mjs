// Runs one device of the JavaScript SDK for the tests; the same commands and lines as driver.py.
import { readFileSync, writeFileSync } from "node:fs";
import readline from "node:readline";
import { Device } from "../../sdk/carillon-device.js";

console.warn = () => {};
const say = (what) => process.stdout.write(JSON.stringify(what) + "\n");

const pending = [];
const elapsed = [];
const timers = {
  set(callback, ms) {
    const timer = { callback, ms: Math.round(ms) };
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
  say({ push });
  if (push.content === "fail") throw new Error("the app's own trouble");
  if (push.content === "hang") return new Promise(() => {});
  if (push.content === "slow") return new Promise((resolve) => timers.set(resolve, 5000));
}

let device;
const commands = {
  start({ url, state, attributes, heartbeat }) {
    const onEvent = (event) => say({ event });
    const storage = stored(state);
    device = new Device(url, "1000000001", { storage, attributes, heartbeat, onPush, onEvent, timers, random: () => 0.5 });
    device.connect().then(
      () => say({ connect: "welcomed" }),
      (error) => say({ connect: error.kind }),
    );
  },
  elapse: ({ ms }) => timers.elapse(ms),
  async call({ method, arguments: values }) {
    const name = method.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
    try {
      say({ returned: (await device[name](...values)) ?? null });
    } catch (error) {
      say({ raised: [error.kind, error.code ?? null] });
    }
  },
  async close() {
    await device.close();
    say({ closed: true });
    process.stdin.destroy();
  },
};

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const command = JSON.parse(line);
  commands[command.do](command);
});
