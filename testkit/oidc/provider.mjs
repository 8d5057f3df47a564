// An OpenID Connect provider for tests: the npm package oidc-provider, with people who log in by name alone.
// Usage: node provider.mjs DIRECTORY_OF_NODE_MODULES SETTINGS_JSON; prints "ready" once it listens.
import { createServer } from "node:http";
import { generateKeyPairSync, randomUUID } from "node:crypto";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [directory, text] = process.argv.slice(2);
const settings = JSON.parse(text);
const { default: Provider } = await import(pathToFileURL(createRequire(`${directory}/`).resolve("oidc-provider")));

const people = new Map();
const logOutTokens = [];
let refusesTokens = false;
const stored = new Map();

// What the provider stores, in memory, and over a change of the key.
class Store {
  constructor(model) { this.model = model; }
  async upsert(id, payload) { stored.set(`${this.model}:${id}`, payload); }
  async find(id) { return stored.get(`${this.model}:${id}`); }
  async findByUid(uid) {
    return [...stored].find(([key, payload]) => key.startsWith(`${this.model}:`) && payload.uid === uid)?.[1];
  }
  async consume(id) { stored.get(`${this.model}:${id}`).consumed = Math.floor(Date.now() / 1000); }
  async destroy(id) { stored.delete(`${this.model}:${id}`); }
  async revokeByGrantId(grantId) {
    for (const [key, payload] of stored) if (payload.grantId === grantId) stored.delete(key);
  }
}

let provider = newProvider();

function newProvider() {
  const { privateKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
  const signing = { ...privateKey.export({ format: "jwk" }), use: "sig", kid: randomUUID() };
  const client = (id, more) => ({
    client_id: id,
    redirect_uris: [`${settings.console}/log-in/provider/return`],
    post_logout_redirect_uris: [`${settings.console}/log-in`],
    grant_types: ["authorization_code", "refresh_token"],
    response_types: ["code"],
    id_token_signed_response_alg: "ES256",
    backchannel_logout_uri: settings.backchannel,
    backchannel_logout_session_required: true,
    ...more,
  });
  const made = new Provider(settings.issuer, {
    adapter: Store,
    jwks: { keys: [signing] },
    cookies: { keys: ["test"] },
    clients: [
      client("console", { client_secret: settings.secret }),
      client("public-console", { token_endpoint_auth_method: "none" }),
      client("short-console", { client_secret: settings.secret, grant_types: ["authorization_code"] }),
    ],
    claims: { openid: ["sub", "groups"], profile: ["name", "preferred_username"] },
    scopes: ["openid", "profile", "offline_access"],
    pkce: { required: () => true },
    rotateRefreshToken: () => true,
    fetch: (url, { dispatcher, ...options }) => fetch(url, options), // its dispatcher refuses addresses of this host
    issueRefreshToken: async (ctx, of) => of.grantTypeAllowed("refresh_token"),
    ttl: { AccessToken: 3600, AuthorizationCode: 60, Grant: 86400, IdToken: 3600, Interaction: 3600, RefreshToken: 86400, Session: 86400 },
    interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
    features: {
      devInteractions: { enabled: false },
      backchannelLogout: { enabled: true },
      revocation: { enabled: true },
      rpInitiatedLogout: {
        enabled: true,
        logoutSource: (ctx, form) => {
          ctx.body = page(`${form}<button form="op.logoutForm" name="logout" value="yes">Log out here too</button>`);
        },
        postLogoutSuccessSource: (ctx) => { ctx.body = page("Logged out"); },
      },
    },
    findAccount: async (ctx, id) => people.has(id)
      ? { accountId: id, claims: async () => ({ sub: id, ...people.get(id) }) }
      : undefined,
    loadExistingGrant: async (ctx) => {
      const { oidc } = ctx;
      const known = oidc.session.grantIdFor(oidc.client.clientId);
      const grant = (known && await oidc.provider.Grant.find(known))
        || new oidc.provider.Grant({ clientId: oidc.client.clientId, accountId: oidc.session.accountId });
      grant.addOIDCScope("openid profile offline_access");
      await grant.save();
      return grant;
    },
  });
  for (const event of ["server_error", "backchannel.error"]) {
    made.on(event, (ctx, error) => console.error(event, error));
  }
  return made;
}

function page(content) {
  return `<!DOCTYPE html><html lang="en"><head><title>Test provider</title></head><body>${content}</body></html>`;
}

async function bodyOf(request) {
  const parts = [];
  for await (const part of request) parts.push(part);
  return Buffer.concat(parts).toString();
}

async function interact(request, response) {
  if (request.method === "GET") {
    const { uid } = await provider.interactionDetails(request, response);
    response.setHeader("Content-Type", "text/html");
    response.end(page(`<form method="post" action="/interaction/${uid}"><label>Name <input name="name"></label>
      <button name="act" value="log-in">Log in</button><button name="act" value="deny">Deny</button></form>`));
    return;
  }
  const form = new URLSearchParams(await bodyOf(request));
  const found = [...people].find(([, claims]) => claims.preferred_username === form.get("name"));
  const result = form.get("act") === "deny" || !found
    ? { error: "access_denied", error_description: "the person said no" }
    : { login: { accountId: found[0] } };
  await provider.interactionFinished(request, response, result, { mergeWithLastSubmission: false });
}

// What a test changes: people by subject, the signing key, whether the token endpoint answers.
async function control(request, response) {
  const asked = JSON.parse(await bodyOf(request) || "{}");
  if (asked.person) people.set(asked.person.sub, asked.person.claims);
  if (asked.leaver) people.delete(asked.leaver);
  if (asked.newKey) provider = newProvider();
  if ("refusesTokens" in asked) refusesTokens = asked.refusesTokens;
  response.end(JSON.stringify({ logOutTokens: logOutTokens.splice(0) }));
}

async function answer(request, response) {
  const path = request.url.split("?")[0];
  if (path === "/control") return control(request, response);
  if (path === "/inbox") {
    logOutTokens.push(new URLSearchParams(await bodyOf(request)).get("logout_token"));
    return response.end();
  }
  if (path.startsWith("/interaction/")) return interact(request, response);
  if (refusesTokens && path === "/token") {
    response.statusCode = 503;
    return response.end();
  }
  return provider.callback()(request, response);
}

createServer((request, response) => {
  answer(request, response).catch((error) => {
    console.error(error);
    response.statusCode = 500;
    response.end();
  });
}).listen(settings.port, "127.0.0.1", () => console.log("ready"));
process.stdin.on("end", () => process.exit());
process.stdin.resume();
