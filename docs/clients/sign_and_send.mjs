// Sign a request and send it: node sign_and_send.mjs URL SECRET... < request.json
import { createHash, createHmac, randomUUID } from "node:crypto";
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
  const headers = { "Content-Type": "application/json", ...replaySafe(method, url, signed, secrets) };
  const response = await fetch(url, { method, body: signed, headers });
  return response.json();
}

// The headers by which nobody can send the request again.
function replaySafe(method, url, body, secrets) {
  const [time, nonce] = [String(Math.floor(Date.now() / 1000)), randomUUID()];
  const text = [method, new URL(url).pathname, time, nonce, createHash("sha256").update(body).digest("hex")].join("\n");
  const signature = createHmac("sha256", secrets.join("")).update(text).digest("hex");
  return { "Carillon-Time": time, "Carillon-Nonce": nonce, "Carillon-Signature": signature };
}

const [url, ...secrets] = process.argv.slice(2);
console.log(JSON.stringify(await send(url, JSON.parse(readFileSync(0, "utf8")), secrets)));
