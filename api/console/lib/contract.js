/**
 * A contract in the address, and in a file. Anybody can write either and have somebody else open it: no name in it becomes a
 * property unless it is the path of a field.
 */

/** @typedef {{path: string, label: string, hint?: string, choices?: [string, string][], isText?: boolean}} Field */

export const BASE = "model.hf_repo";
export const FILE = "data.train_file";
export const REPLAY = "data.replay_file";
export const NAMES = /** @type {Field[]} */ ([
  { path: "name", label: "Name", hint: "first part of the adapter's id", isText: true },
  { path: "artifact.alias", label: "Alias", hint: "a name to ask the result by, which later runs can take over", isText: true },
]);
export const MAIN = /** @type {Field[]} */ ([
  { path: "exec.epochs", label: "Epochs", hint: "passes over the file" },
  { path: "exec.learning_rate", label: "Learning rate" },
  { path: "exec.batch_size", label: "Rows a step" },
]);
export const MORE = /** @type {Field[]} */ ([
  { path: "exec.seq_len", label: "Longest row", hint: "tokens; longer rows are cut" },
  { path: "quant.base", label: "Precision of the base", choices: [["none", "full"], ["nf4", "4 bit (NF4)"]] },
  { path: "adapter.rank", label: "Rank" },
  { path: "adapter.alpha", label: "Alpha" },
  { path: "data.validation_split_ratio", label: "Held-out share", hint: "0 to 0.5" },
  { path: "exec.seed", label: "Seed" },
  { path: "artifact.publish", label: "Serve the result", choices: [["true", "yes"], ["false", "no, store it only"]] },
  { path: "adapter.continue_from", label: "Continue from", hint: "an adapter or alias", isText: true },
]);
export const FORM = [...NAMES, ...MAIN, ...MORE];
/** Parameters of the address that stand next to the contract. */
export const BESIDE = ["name", "preset", "domain"];
const TEXTS = new Set([BASE, FILE, REPLAY, "preset", "domain", ...FORM.filter((field) => field.isText || field.choices).map((field) => field.path)]);
// Capitals: a template's arguments have names of its own.
const PATH = /^[a-z_]+(?:\.[A-Za-z0-9_-]+)*$/;
const RESERVED = new Set(["__proto__", "constructor", "prototype"]);
/** Fields that `mens train` has as an option: of a section, with a value that is no object or list. */
const OPTION = /^[a-z]+\.[a-z0-9_]+$/;
const OPTIONS = /** @type {Record<string, string>} */ ({ [BASE]: "model", "quant.base": "quant", "adapter.continue_from": "continue" });
/** Fields whose last name is another field's option, or none. */
const WITHOUT_OPTION = new Set(["curriculum", "method", "optimizer", "preference", "reward", "trajectory"]);

/** @param {unknown} value @returns {value is Record<string, any>} */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Whether a parameter of the address is a field. @param {string} path */
export function isField(path) {
  if (!PATH.test(path) || path.split(".").some((part) => RESERVED.has(part))) return false;
  return path.includes(".") || BESIDE.includes(path) || path === "collateral_damage_verified";
}

/**
 * The body of the request, from the address. Of a parameter that is there twice the first counts, which the form shows.
 * @param {URLSearchParams} query
 */
export function bodyOf(query) {
  /** @type {Record<string, any>} */
  const contract = Object.create(null);
  /** @type {Record<string, any>} */
  const body = Object.assign(Object.create(null), { kind: "finetune", contract, hyperparameters: "auto" });
  for (const path of new Set(query.keys())) {
    const text = (query.get(path) || "").trim();
    if (!isField(path) || text === "") continue;
    const parts = path.split(".");
    const last = /** @type {string} */ (parts.pop());
    let place = BESIDE.includes(path) ? body : contract;
    for (const part of parts) {
      if (!Object.hasOwn(place, part)) place[part] = Object.create(null);
      place = place[part];
      if (!isObject(place)) break; // `exec.epochs` and `exec.epochs.x`
    }
    if (isObject(place)) place[last] = valueOf(path, text);
  }
  return body;
}

/**
 * A value as it stands in the address: names as they are, all else as JSON where it is some.
 * @param {string} path
 * @param {string} text
 */
function valueOf(path, text) {
  if (path === "artifact.publish") return text === "true";
  if (TEXTS.has(path)) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text; // the API says at this field what it takes
  }
}

/**
 * Parameters of the address for fields of a contract; null is a field that was left open.
 * @param {[string, any][]} fields
 * @returns {Record<string, string>}
 */
export function parametersOf(fields) {
  const given = fields.filter(([path, value]) => isField(path) && value !== null && value !== undefined);
  return Object.fromEntries(given.map(([path, value]) => [path, TEXTS.has(path) ? String(value) : JSON.stringify(value)]));
}

/**
 * Fields of a contract by path.
 * @param {Record<string, any>} value
 * @param {string} [above]
 * @returns {[string, any][]}
 */
export function flat(value, above = "") {
  return Object.entries(value).flatMap(([name, part]) => {
    const path = above ? `${above}.${name}` : name;
    return isObject(part) && Object.keys(part).length ? flat(part, path) : [/** @type {[string, any]} */ ([path, part])];
  });
}

/**
 * Parameters of the address for a contract's file: its sections, or a request with the contract in it.
 * @param {string} text
 * @throws {SyntaxError} it is no contract, or names what cannot be a field
 */
export function parametersOfFile(text) {
  const given = JSON.parse(text);
  if (!isObject(given)) throw new SyntaxError();
  const isRequest = Object.hasOwn(given, "contract") && isObject(given.contract);
  const fields = flat(isRequest ? given.contract : given);
  if (isRequest) for (const name of BESIDE) if (Object.hasOwn(given, name)) fields.push([name, given[name]]);
  if (!fields.every(([path, value]) => isField(path) || (isObject(value) && PATH.test(path) && !RESERVED.has(path)))) throw new SyntaxError();
  return parametersOf(fields);
}

/**
 * The words of `mens train` for a body, without its file. What is no option stands in the downloaded contract.
 * @param {any} body
 * @param {(text: string) => string} quoted
 */
export function optionsOf(body, quoted) {
  const beside = BESIDE.filter((name) => typeof body[name] === "string").flatMap((name) => [`--${name}`, quoted(body[name])]);
  const given = flat(body.contract).filter(([path]) => path !== FILE);
  if (!given.every(([path, value]) => isOption(path, value))) return ["--contract", quoted(fileNameOf(body)), ...beside];
  const options = given.flatMap(([path, value]) => {
    if (path === "artifact.publish") return [value ? "--publish" : "--no-publish"];
    const name = OPTIONS[path] || path.split(".")[1].replaceAll("_", "-");
    return [`--${name}`, quoted(typeof value === "string" ? value : JSON.stringify(value))];
  });
  return [...options, ...beside];
}

/** @param {string} path @param {unknown} value */
function isOption(path, value) {
  if (!OPTION.test(path) || path === "data.context_filter" || WITHOUT_OPTION.has(path.split(".")[0])) return false;
  return typeof value === "string" ? !value.startsWith("-") : typeof value === "number" || typeof value === "boolean";
}

/** The name under which a contract is downloaded. @param {any} body */
export function fileNameOf(body) {
  return `${String(body.name || "contract").replace(/[^\w.-]/g, "_").replace(/^[.-]+/, "") || "contract"}.json`;
}

/**
 * What a contract's file has in it: its sections alone, as `mens train --contract` takes them, or next to name, preset and domain.
 * @param {any} body
 */
export function fileOf(body) {
  const beside = BESIDE.filter((name) => body[name] !== undefined).map((name) => [name, body[name]]);
  return `${JSON.stringify(beside.length ? { ...Object.fromEntries(beside), contract: body.contract } : body.contract, null, 2)}\n`;
}

/**
 * Who decided a field: the source of its path, or of the nearest field around it (one value of an object has none of its own).
 * @param {Record<string, string> | undefined} sources
 * @param {string} path
 * @returns {string | undefined}
 */
export function sourceOf(sources, path) {
  for (let at = path; sources && at; at = at.slice(0, Math.max(0, at.lastIndexOf(".")))) if (Object.hasOwn(sources, at)) return sources[at];
  return undefined;
}

const CHOSEN = ["explicit", "preset", "domain"];
/** What auto rules decide where it is left open. */
const RULED = ["exec.batch_size", "exec.grad_accum", "exec.epochs", "exec.learning_rate"];

/**
 * Parameters of the address that repeat a job: its base, and what somebody chose, by himself or with a preset or a domain. Of a
 * job without auto rules also what these would decide now.
 * @param {any} job
 * @param {Record<string, string>} sources empty: nobody knows any more, and the names are kept
 */
export function parametersOfJob(job, sources) {
  const isKnown = Object.keys(sources).length > 0;
  const kept = RULED.some((path) => sourceOf(sources, path) === "auto") ? [] : RULED;
  const fields = flat(job.contract || {}).filter(([path]) => path === BASE || (isKnown ? kept.includes(path) || CHOSEN.includes(sourceOf(sources, path) || "") : [FILE, "artifact.alias"].includes(path)));
  return parametersOf([...fields, ...(job.name ? [/** @type {[string, any]} */ (["name", job.name])] : [])]);
}
