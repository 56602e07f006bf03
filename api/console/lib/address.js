/** The address is the state: `#/jobs?state=running&q=invoice`. Filters, zoom and the open tab are in it; prompts and keys never are. */
import { computed, signal } from "../vendor/signals.js";
import { decoded, readAddress } from "./first_calls.js";

const hash = signal(location.hash);
addEventListener("hashchange", () => takeCode() || (hash.value = location.hash));

/** Parts of the path and the parameters, decoded. */
export const address = computed(() => readAddress(hash.value));

/** Where the identity provider sends the browser back. */
const CALLBACK = "/console/callback";

/** The identity provider's answer, which is removed from the address at once. Who is signed in already needs none. */
export const providerAnswer = signal(/** @type {Record<string, string> | null} */ (null));
if (location.pathname === CALLBACK) {
  const told = new URLSearchParams(location.search);
  const names = ["state", "code", "iss", "error"].filter((name) => told.get(name));
  if (told.get("state")) providerAnswer.value = Object.fromEntries(names.map((name) => [name, told.get(name) || ""]));
  history.replaceState(null, "", "/#/jobs");
  hash.value = location.hash;
}

/**
 * The address of a screen.
 * @param {string[]} parts
 * @param {Record<string, string | number | null | undefined>} [query] without what is empty
 */
export function to(parts, query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(kept.map(([key, value]) => [key, String(value)])).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${text ? `?${text}` : ""}`;
}

/** @param {string} target */
export function go(target) {
  location.hash = target;
}

/**
 * Change parameters of this screen. Text that is being typed replaces the entry of the history, so that "back" leaves the screen.
 * @param {Record<string, string | number | null | undefined>} changes
 * @param {{replace?: boolean}} [options]
 */
export function change(changes, { replace = false } = {}) {
  const { parts, query } = address.value;
  const target = to(parts, { ...Object.fromEntries(query), ...changes });
  if (!replace) return go(target);
  history.replaceState(null, "", target);
  hash.value = target;
}

/** The one-time code of the address, which is removed from it at once: when the page is loaded, or a link is pasted into its tab. */
export const oneTimeCode = signal("");

function takeCode() {
  const code = /^#code=([\w.~-]+)(?:&next=(.*))?$/.exec(location.hash);
  if (!code) return false;
  const next = decoded(code[2] || "");
  history.replaceState(null, "", next.startsWith("#/") ? next : "#/jobs");
  hash.value = location.hash;
  oneTimeCode.value = code[1];
  return true;
}
takeCode();
