// Sends and receives with the npm packages web-push and http_ece: JSON on stdin, JSON on stdout.
import crypto from "node:crypto";
import { createRequire } from "node:module";

const require = createRequire(`${process.argv[2]}/node_modules/`);
const [webPush, ece] = [require("web-push"), require("http_ece")];
const base64url = (bytes) => Buffer.from(bytes).toString("base64url");

let text = "";
for await (const piece of process.stdin) text += piece;
const { send, receive } = JSON.parse(text);
const answer = {};

if (send) {
  // {subscription, payloads, vapid: {subject, publicKey, privateKey}}: the requests for these payloads.
  answer.sent = send.payloads.map((payload) => {
    const options = { vapidDetails: send.vapid, TTL: 60, contentEncoding: "aes128gcm", topic: "carillon-7", urgency: "high" };
    const { headers, body } = webPush.generateRequestDetails(send.subscription, Buffer.from(payload, "base64url"), options);
    return { headers, body: base64url(body) };
  });
}
if (receive) {
  // {privateKey, auth, bodies}: what a browser with these keys reads.
  const key = crypto.createECDH("prime256v1");
  key.setPrivateKey(Buffer.from(receive.privateKey, "base64url"));
  answer.received = receive.bodies.map((body) =>
    base64url(ece.decrypt(Buffer.from(body, "base64url"), { version: "aes128gcm", privateKey: key, authSecret: receive.auth })));
}
console.log(JSON.stringify(answer));
