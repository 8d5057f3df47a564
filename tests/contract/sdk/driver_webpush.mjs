// Runs one device of carillon-webpush.js for the tests of frames over HTTP, as its page and its worker in one.
import readline from "node:readline";
import { dispatch, pushManager, seen } from "./fake_browser.mjs";
import "../../../sdk/carillon-webpush.js";

console.warn = () => {};
const emit = (line) => process.stdout.write(JSON.stringify(line) + "\n");

const commands = {
  async start({ url }) {
    await CarillonWebPush.subscribe({ url, appkey: "1000000001", registration: { pushManager } });
    emit({ event: { type: "welcome" } });
  },
  async notification({ event, msgid, click }) {
    const push = { type: "push", msgid, is_notif: 1, content: "text", click };
    if (event === "shown") await dispatch("push", { data: { json: () => push } });
    const notification = { data: { carillon: push }, close() {} };
    seen.opened = null;
    if (event === "clicked") await dispatch("notificationclick", { notification });
    if (event === "dismissed") await dispatch("notificationclose", { notification });
    emit({ returned: seen.opened });
  },
  close() {
    emit({ closed: true });
    process.stdin.destroy();
  },
};

readline.createInterface({ input: process.stdin }).on("line", (line) => {
  const command = JSON.parse(line);
  commands[command.do](command);
});
