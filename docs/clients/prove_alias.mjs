// Prove who is on a device: node prove_alias.mjs PRIVATE.pem APPKEY ALIAS [TOKEN]
import { sign } from "node:crypto";
import { readFileSync } from "node:fs";

const encoded = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");

/** Returns a proof for the user who has logged in. Call it only with the alias of this user. */
export function prove(pem, appkey, alias, token, seconds = 3600) {
  const now = Math.floor(Date.now() / 1000);
  const claims = { sub: alias, aud: appkey, iat: now, exp: now + seconds, token };
  const text = `${encoded({ alg: "ES256" })}.${encoded(claims)}`;
  const signature = sign("sha256", Buffer.from(text), { key: pem, dsaEncoding: "ieee-p1363" });
  return `${text}.${signature.toString("base64url")}`;
}

const [file, appkey, alias, token] = process.argv.slice(2);
console.log(prove(readFileSync(file, "utf8"), appkey, alias, token));
