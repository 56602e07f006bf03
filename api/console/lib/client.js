/**
 * Calls of the public API. The page has no route of its own: what it shows, any client can ask.
 *
 * A request counts with the cookie and with the page's half of the sign-in, which is in `localStorage` (an origin has its port;
 * cookies do not).
 */
import { signal } from "../vendor/signals.js";
import { HALF, fetchAs, sentBefore } from "./first_calls.js";

/** Of a sign-in that has gone to the identity provider: the page's half, and the address that was wanted. */
const PENDING = "mens.pending_sign_in";

/** Who is signed in, as `GET /v1/me` answers; undefined before it has, null: nobody. */
export const caller = signal(/** @type {any} */ (undefined));

/** Requests of this tab besides streams: their number, and when the last one was answered, and the last one was not. */
export const traffic = { calls: 0, answeredAt: 0, failedAt: 0 };

/** Whether a sign-in that the page had is not known any more: the next screen says so. */
export const hasEnded = signal(false);

/** A refusal of the API, or a request without an answer (`status` 0). */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {{code?: string, message?: string, remedy?: string, retryable?: boolean, param?: string | null, details?: any}} error
   * @param {string | null} requestId
   */
  constructor(status, error, requestId) {
    const remedy = error.remedy || "";
    // The API's sentence ends with its remedy, which the page shows by itself.
    super((error.message || `The answer has status ${status}.`).replace(remedy ? ` ${remedy}` : "\0", ""));
    this.status = status;
    this.code = error.code || (status ? `HTTP_${status}` : "UNREACHABLE");
    this.remedy = remedy;
    this.param = error.param || "";
    this.details = error.details || {};
    this.retryable = error.retryable ?? status >= 500;
    this.requestId = requestId;
  }
}

/**
 * The response to a request, whatever its status.
 * @param {string} path
 * @param {{method?: string, json?: unknown, body?: BodyInit, headers?: Record<string, string>, signal?: AbortSignal, isNobodys?: boolean}} [options]
 *   `isNobodys`: without the sign-in that there may be
 */
export async function send(path, options = {}) {
  // Own properties only: what somebody got onto Object.prototype is no part of a request.
  const { method = "GET", json, body, headers = {}, signal: abort, isNobodys = false } = Object.assign(/** @type {typeof options} */ (Object.create(null)), options);
  const half = isNobodys ? null : storedHalf();
  const isPlain = method === "GET" && !abort && !Object.keys(headers).length;
  try {
    const before = isPlain ? sentBefore(path, half) : undefined;
    if (before) return await before;
    return await fetchAs(path, half, {
      method,
      headers: json === undefined ? headers : { ...headers, "Content-Type": "application/json" },
      body: json === undefined ? body : JSON.stringify(json),
      signal: abort,
    });
  } catch (error) {
    if (abort?.aborted) throw error;
    throw new ApiError(0, { message: "Mens does not answer.", remedy: "Check the network, and whether Mens runs.", retryable: true }, null);
  }
}

/**
 * The response to a request that must succeed.
 * @param {string} path
 * @param {Parameters<typeof send>[1]} [options]
 */
export async function succeed(path, options) {
  const half = storedHalf(); // that the request carries
  traffic.calls += 1;
  const response = await send(path, options).catch((error) => {
    if (error instanceof ApiError) traffic.failedAt = Date.now();
    throw error;
  });
  traffic[response.status < 500 ? "answeredAt" : "failedAt"] = Date.now();
  if (response.ok || response.status === 304) return response;
  let error = {};
  try {
    const { error: refusal } = await response.json();
    error = { ...refusal, ...refusal?.mens }; // OpenAI's shape, with ours in it
  } catch {
    // Not of the API: a proxy's page.
  }
  if (response.status === 401 && !options?.isNobodys) endSignIn(half);
  throw new ApiError(response.status, error, response.headers.get("x-request-id"));
}

/** The page's half of the sign-in that there is now, in all tabs. */
export function storedHalf() {
  return localStorage.getItem(HALF);
}

/**
 * The API knows a sign-in no more: its key was revoked, or it expired. This tab and all others ask nothing further.
 * @param {string | null} half of the refused request; a sign-in that has begun since then goes on
 */
export function endSignIn(half) {
  if (!caller.peek() || storedHalf() !== half) return;
  hasEnded.value = true;
  localStorage.removeItem(HALF);
  caller.value = null;
}

/**
 * The JSON of a request that must succeed.
 * @param {string} path
 * @param {Parameters<typeof send>[1]} [options]
 * @returns {Promise<any>}
 */
export async function call(path, options) {
  const response = await succeed(path, options);
  return response.status === 204 ? null : response.json();
}

/**
 * Ask who is signed in.
 * @returns {Promise<void>}
 */
export async function findCaller() {
  const half = storedHalf();
  if (!half) {
    caller.value = null;
    return;
  }
  try {
    caller.value = await call("/v1/me");
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 401) throw error;
    if (storedHalf() === half) caller.value = null;
  }
}

/**
 * Exchange a key or a one-time code for a sign-in of 24 hours. The key is kept nowhere.
 * @param {{key?: string, code?: string}} secret
 */
export async function signIn({ key, code }) {
  const { half, challenge } = await newHalf();
  await call("/v1/sign_ins", {
    method: "POST",
    isNobodys: true,
    json: code ? { code, challenge } : { challenge },
    headers: key ? { Authorization: `Bearer ${key}` } : {},
  });
  localStorage.setItem(HALF, half);
  hasEnded.value = false;
  await findCaller();
}

/** Go to the identity provider. What is needed after the way back stays in this tab. */
export async function goToProvider() {
  const { half, challenge } = await newHalf();
  const { authorization_url: url } = await call("/v1/sign_in/oidc", { method: "POST", isNobodys: true, json: { challenge } });
  sessionStorage.setItem(PENDING, JSON.stringify({ half, next: location.hash }));
  location.assign(url);
}

/**
 * Hand the identity provider's answer in; then the address that was wanted.
 * @param {Record<string, string>} answer
 */
export async function returnFromProvider(answer) {
  const { half = "", next = "" } = JSON.parse(sessionStorage.getItem(PENDING) || "{}");
  sessionStorage.removeItem(PENDING);
  if (!half) {
    // Whoever made this address may know the half that fits it, and would get this browser to work in their name.
    throw new ApiError(401, {
      code: "SIGN_IN_STATE_INVALID",
      message: "This answer of the identity provider does not belong to a sign-in that began in this tab.",
      remedy: "Begin again: press the button of single sign-on.",
    }, null);
  }
  if (next.startsWith("#/")) location.replace(next); // a part of this page, whatever it is
  await call("/v1/sign_in/oidc/callback", { method: "POST", isNobodys: true, json: answer, headers: { "X-Mens-Sign-In": half } });
  localStorage.setItem(HALF, half);
  await findCaller();
}

/** End the sign-in, here and on the server, and at the identity provider if it came from there. */
export async function signOut() {
  let ended = null;
  try {
    ended = await call("/v1/sign_ins/current", { method: "DELETE" });
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 401) throw error;
  }
  localStorage.removeItem(HALF);
  hasEnded.value = false;
  caller.value = null;
  if (ended?.end_session_url) location.assign(ended.end_session_url);
}

/** A new page's half of a sign-in, and its digest, which the server gets. */
async function newHalf() {
  const half = hex(crypto.getRandomValues(new Uint8Array(32)));
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(half));
  return { half, challenge: hex(new Uint8Array(digest)) };
}

/** Another tab has signed in or out. */
addEventListener("storage", (event) => {
  if (event.key === HALF) findCaller().catch(() => {});
});

/** @param {Uint8Array} bytes */
function hex(bytes) {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/**
 * Why the caller may not do what needs a role; empty: they may.
 * @param {"viewer" | "trainer" | "admin"} role
 */
export function missingRole(role) {
  const ranks = ["viewer", "trainer", "admin"];
  const has = caller.value?.role;
  return ranks.indexOf(has) >= ranks.indexOf(role) ? "" : `needs the role ${role}; you have ${has}`;
}
