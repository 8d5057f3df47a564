// Sign a request and send it: node sign_and_send.mjs URL SECRET... < request.json
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

// JavaScript sorts by UTF-16 units; the order of UTF-8 bytes is that of code points.
const inOrder = (a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b));

function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const keys = Object.keys(value).sort(inOrder);
  return `{${keys.map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`).join(",")}}`;
}

export async function send(url, body, secrets, method = "POST") {
  const text = canonical(body);
  const sign = createHash("md5").update(text + secrets.join("")).digest("hex");
  const signed = `{"sign":"${sign}",${text.slice(1)}`;
  const response = await fetch(url, { method, body: signed, headers: { "Content-Type": "application/json" } });
  return response.json();
}

const [url, ...secrets] = process.argv.slice(2);
console.log(JSON.stringify(await send(url, JSON.parse(readFileSync(0, "utf8")), secrets)));
