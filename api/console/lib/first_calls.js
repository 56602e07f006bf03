/**
 * What the first screen asks for, sent as soon as this file has arrived: the other modules take longer than the answers. It imports
 * nothing, so that it runs first. Paths of these requests are made here alone, and each answer serves the request that would repeat it.
 */
const KEPT = 5_000;
/** Where the page's half of a sign-in is stored. */
export const HALF = "mens.sign_in";
export const FILTERS = /** @type {const} */ ([["base", "base_model"], ["alias", "alias"], ["by", "created_by"]]);
const PAGE = 50;
const POINTS = 1000;
/** Series that the page of a run draws. Others, such as those of preference tuning, would make the answer longer, and nobody would see them. */
const SERIES = "train_loss,valid_loss,learning_rate,grad_norm,tokens_per_second,memory_bytes";

/** Parts of the path and the parameters of an address, decoded. @param {string} hash */
export function readAddress(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return { parts: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

/** @param {string} part */
export function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/**
 * The parameters of the list of jobs, from the address.
 * @param {URLSearchParams} query
 */
export function parametersOf(query) {
  const parameters = new URLSearchParams({ view: "summary", limit: String(PAGE) });
  if (query.get("state")) parameters.set("state", query.get("state") || "");
  for (const [short, long] of FILTERS) if (query.get(short)) parameters.set(long, query.get(short) || "");
  if ((query.get("q") || "").length >= 2) parameters.set("q", query.get("q") || "");
  const days = Number(query.get("since"));
  if (days > 0 && days < 36_500) {
    const from = new Date(Date.now() - days * 86_400_000);
    from.setUTCMinutes(0, 0, 0); // so that the list stays the same for an hour
    parameters.set("created_after", from.toISOString());
  }
  return parameters;
}

/**
 * The numbers of jobs by state, with the filters of the list. With a text to find they are not counted: that would read every job.
 * @param {URLSearchParams} parameters
 */
export function countsPath(parameters) {
  const filters = new URLSearchParams(parameters);
  for (const name of ["view", "limit", "state"]) filters.delete(name);
  return filters.has("q") ? null : `/v1/jobs:count?${new URLSearchParams({ group_by: "state", ...Object.fromEntries(filters) })}`;
}

/** @param {string} id */
export function jobPath(id) {
  return `/v1/jobs/${encodeURIComponent(id)}`;
}

/** @param {string} id @param {number} after */
export function eventsPath(id, after) {
  return `${jobPath(id)}?after=${after}`;
}

/** @param {string} id @param {number | null} from @param {number | null} until */
export function metricsPath(id, from, until) {
  return `${jobPath(id)}/metrics?series=${SERIES}&points=${POINTS}${from ? `&from_step=${from}` : ""}${until ? `&to_step=${until}` : ""}`;
}

/** The steps that the address shows of a run. @param {URLSearchParams} query */
export function shownSteps(query) {
  return { from: Number(query.get("from")) || null, until: Number(query.get("to")) || null };
}

/**
 * Fetch with a sign-in. Options are own properties only: what somebody got onto Object.prototype is no part of a request.
 * @param {string} path
 * @param {string | null} half
 * @param {RequestInit} [options]
 */
export function fetchAs(path, half, options = {}) {
  const headers = { ...(half ? { "X-Mens-Sign-In": half } : {}), .../** @type {Record<string, string>} */ (options.headers || {}) };
  // ETags are compared in cache.js.
  return fetch(path, Object.assign(Object.create(null), { cache: "no-store", credentials: "same-origin" }, options, { headers }));
}

/** @type {Map<string, {answer: Promise<Response>, half: string, at: number}>} */
const sent = new Map();

/**
 * The answer to a request that this file has sent, once; undefined: it has not, or too long ago.
 * @param {string} path
 * @param {string | null} half
 */
export function sentBefore(path, half) {
  const first = sent.get(path);
  sent.delete(path);
  return first?.half === half && Date.now() - first.at < KEPT ? first.answer : undefined;
}

/** @type {Promise<unknown>} */
let shownFirst = Promise.resolve();

/** When the answer has arrived that most of the first screen shows. */
export function firstAnswer() {
  return shownFirst;
}

/** @type {Promise<string> | undefined} */
let begins;

/**
 * The id from which the stream of changes has what the first answers of this page do not, known when they have arrived. Empty: they
 * name none; undefined: it asked for nothing, because nobody was signed in.
 */
export function firstCursor() {
  return begins;
}

/** The earliest id that answers name. @param {Promise<Response>[]} answers */
async function earliest(answers) {
  const ids = (await Promise.allSettled(answers)).map((one) => (one.status === "fulfilled" && one.value.headers.get("x-mens-last-event-id")) || "");
  return ids.includes("") ? "" : ids.reduce((a, b) => (Number(a) < Number(b) ? a : b));
}

/** Its whole content, so that nobody waits for it later: the first frame has what it says. @param {Response} response */
async function complete(response) {
  if (!response.ok) return response;
  const text = await response.text();
  return Object.assign(new Response(text, response), { json: async () => JSON.parse(text) }); // its own would be read after the frame
}

/** @param {string} half */
function sendFirst(half) {
  const { parts, query } = readAddress(location.hash);
  const [screen = "jobs", id = ""] = parts;
  /** @param {string} path @param {Promise<unknown>} [before] its answer is waited for */
  const send = (path, before) => {
    const answer = (before ? before.then(() => {}, () => {}).then(() => fetchAs(path, half)) : fetchAs(path, half)).then(complete);
    answer.catch(() => {});
    sent.set(path, { answer, half, at: Date.now() });
    return answer;
  };
  if (screen === "jobs") {
    const parameters = parametersOf(query);
    const counts = countsPath(parameters);
    const list = send(`/v1/jobs?${parameters}`);
    shownFirst = list;
    begins = earliest([list]);
    send("/v1/me");
    if (counts) send(counts, list); // the API counts while the rows are drawn, and not while it reads them
    return;
  }
  begins = earliest([send("/v1/me")]); // a screen asks when it is known who looks
  if (screen === "runs" && id) {
    begins = earliest([send(jobPath(id)), send(eventsPath(id, 0))]);
    const { from, until } = shownSteps(query);
    if (id.startsWith("ftjob-") && !query.get("tab")) send(metricsPath(id, from, until));
    import("../screens/run.js").catch(() => {}); // who opens it says what is wrong
  }
}

const half = localStorage.getItem(HALF);
if (half && location.pathname === "/" && !location.hash.startsWith("#code=")) sendFirst(half);
