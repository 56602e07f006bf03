/** The console's frame: header, the screen that the address names, keyboard, and who is signed in. Start reading here. */
import { render } from "./vendor/preact.js";
import { useEffect, useRef, useState } from "./vendor/preact-hooks.js";
import "./vendor/signals.js";
import { address, go, oneTimeCode, providerAnswer, to } from "./lib/address.js";
import { caller, findCaller, signOut } from "./lib/client.js";
import { clock, plain } from "./lib/format.js";
import { firstAnswer } from "./lib/first_calls.js";
import { connection, follow } from "./lib/stream.js";
import { switchTheme, theme } from "./lib/theme.js";
import { h, html } from "./parts/html.js";
import { isInDialog } from "./parts/row_keys.js";
import { useLostFocus } from "./parts/shown.js";
import { Empty, NotThere } from "./parts/state.js";
import { Jobs } from "./screens/jobs.js";
import { SignIn } from "./screens/sign_in.js";

/** Screens, by the first part of the address. What the first paint does not need comes when it is opened. */
const SCREENS = {
  jobs: { title: "Jobs", load: async () => Jobs },
  new: { title: "New run", load: async () => (await import("./screens/new_run.js")).NewRun },
  compare: { title: "Compare", load: async () => (await import("./screens/compare.js")).Compare },
  runs: { title: "Run", load: async () => (await import("./screens/run.js")).Run },
  files: { title: "Data", load: async () => (await import("./screens/files.js")).Files },
  evals: { title: "Evals", load: async () => (await import("./screens/evals.js")).Evals },
  gates: { title: "Gates", load: async () => (await import("./screens/gates.js")).Gates },
  usage: { title: "Usage and system", load: async () => (await import("./screens/usage.js")).UsageAndSystem },
  playground: { title: "Playground", load: async () => (await import("./screens/playground.js")).Playground },
};
const TABS = [["jobs", "Jobs"], ["files", "Data"], ["evals", "Evals"], ["gates", "Gates"], ["playground", "Playground"], ["usage", "Usage"]];
const KEYS = [
  ["/", "search"], ["j, k", "next and previous row"], ["Enter", "open the row"], ["x, c", "choose the row, compare the chosen"], ["g j", "jobs"], ["g n", "new run"], ["g d", "data"], ["g a", "aliases and gates"], ["g e", "evals"], ["g p", "playground"], ["g u", "usage and system"], ["?", "this list"],
];

/** How long there may be nothing on the page, in ms. */
const NOTHING_SHOWN = 150;
const RELOADED = "mens.reloaded";

/** A module of this release is gone: Mens was updated. Load the page again, once. */
function afterUpdate() {
  if (sessionStorage.getItem(RELOADED)) return false;
  sessionStorage.setItem(RELOADED, "yes");
  location.reload();
  return true;
}

function Screen() {
  const { parts, query } = address.value;
  const name = /** @type {keyof typeof SCREENS} */ (parts[0] || "jobs");
  const screen = Object.hasOwn(SCREENS, name) ? SCREENS[name] : undefined;
  const [loaded, setLoaded] = useState(/** @type {{name: string, view: any} | null} */ (name === "jobs" ? { name, view: Jobs } : null));
  const [error, setError] = useState(/** @type {any} */ (null));
  useEffect(() => {
    let isWanted = true;
    setError(null);
    screen?.load().then(
      (view) => {
        sessionStorage.removeItem(RELOADED);
        if (isWanted) setLoaded({ name, view });
      },
      (reason) => {
        console.error(reason);
        if (isWanted && !afterUpdate()) setError({ code: "CONSOLE_UPDATED", message: "Mens is being updated.", remedy: "Load this page again in a minute." });
      },
    );
    return () => void (isWanted = false);
  }, [name]);
  useLostFocus(parts.join("/"));
  useEffect(() => {
    document.title = `${screen?.title || "Not found"} · Mens`;
  }, [name]);
  if (!screen) return h(Empty, { title: "Page not found", children: html`<p><a href="#/jobs">All jobs</a></p>` });
  if (error || loaded?.name !== name) return h(NotThere, { title: screen.title, error });
  return h(loaded.view, { key: `${name}/${parts[1] || ""}`, parts: parts.slice(1), query });
}

function Connection() {
  const { state, since } = connection.value;
  const words = { live: "live", polling: "polling", stale: `stale since ${clock(since)}`, connecting: "connecting" };
  return html`<span class="connection ${state}" title=${state === "polling" ? "No stream gets through; the page asks again every few seconds, or every minute for many runs." : ""}>
    <span class="shape" aria-hidden="true">${state === "live" ? "●" : state === "stale" ? "✕" : "◌"}</span>${words[state]}</span>`;
}

/** The menu of the account: name, tenant, role, theme, keys. */
function Account() {
  const me = caller.value;
  const keys = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    const show = () => keys.current?.showModal();
    addEventListener("mens-keys", show);
    return () => removeEventListener("mens-keys", show);
  }, []);
  return html`<details class="menu">
      <summary><span class="hidden">Account of ${plain(me.name)}</span><span class="avatar" aria-hidden="true">${plain(me.name).slice(0, 1).toUpperCase()}</span><span class="wide" aria-hidden="true">${plain(me.name, 24)}</span></summary>
      <div class="popup">
        <p><b>${plain(me.name)}</b><br />${plain(me.role)} in ${plain(me.tenant)}${me.is_operator ? ", operator" : ""}</p>
        <button type="button" onClick=${switchTheme}>${theme.value === "dark" ? "Light" : "Dark"} theme</button>
        <button type="button" onClick=${() => keys.current?.showModal()}>Keyboard</button>
        <button type="button" onClick=${() => void signOut()}>Sign out</button>
        ${me.release && html`<p class="faint">Mens ${plain(me.release)}</p>`}
      </div>
    </details>
    <dialog ref=${keys} aria-label="Keyboard"><header><h2>Keyboard</h2><button type="button" class="small" onClick=${() => keys.current?.close()}>Close</button></header>
      <dl class="keys">${KEYS.map(([key, what]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${what}</dd></div>`)}</dl></dialog>`;
}

function Console() {
  const me = caller.value;
  const [error, setError] = useState(/** @type {any} */ (null));
  const ask = () => {
    setError(null);
    findCaller().catch(setError);
  };
  useEffect(() => void asked.catch(setError), []);
  useEffect(() => {
    if (me) providerAnswer.value = null; // it must not count after they have signed out
  }, [me]);
  if (error || me === undefined) return html`<main class="alone">${h(NotThere, { title: "Mens", error, retry: ask, what: "Mens cannot be reached.", rows: 3 })}</main>`;
  if (me === null || oneTimeCode.value) return h(SignIn, {});
  const open = address.value.parts[0] || "jobs";
  return html`<a class="skip" href="#content" onClick=${skip}>To the content</a>
    <header class="top">
      <a class="brand" href="#/jobs" aria-label="Mens, all jobs"><span class="mark" aria-hidden="true"></span><b>Mens</b></a>
      <nav aria-label="Screens">${TABS.map(([name, title]) => html`<a key=${name} href=${to([name])} aria-current=${open === name || (["runs", "new", "compare"].includes(open) && name === "jobs") ? "page" : undefined}>${title}</a>`)}</nav>
      ${h(Connection, {})}${h(Account, {})}
    </header>
    <main id="content" tabindex="-1">${h(Screen, {})}</main>
    <p id="announcements" class="hidden" aria-live="polite"></p>`;
}

/** @param {Event} event */
function skip(event) {
  event.preventDefault(); // the address is the page's state
  document.getElementById("content")?.focus();
}

let isAfterG = false;
addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) || isInDialog()) return;
  const was = isAfterG;
  isAfterG = event.key === "g";
  if (isAfterG) setTimeout(() => (isAfterG = false), 1000);
  if (was && event.key === "j") return void (event.stopImmediatePropagation(), go("#/jobs"));
  if (was && event.key === "n") return go("#/new");
  if (was && event.key === "a") return go("#/gates");
  if (was && event.key === "d") return go("#/files");
  if (was && event.key === "p") return go("#/playground");
  if (was && event.key === "e") return go("#/evals");
  if (was && event.key === "u") return go("#/usage");
  if (event.key === "?") dispatchEvent(new Event("mens-keys"));
  if (event.key === "/") {
    const search = document.querySelector('input[type="search"]');
    if (search instanceof HTMLElement) {
      event.preventDefault();
      search.focus();
    }
  }
});
addEventListener("click", (event) => {
  for (const menu of document.querySelectorAll("details.menu[open]")) if (!menu.contains(/** @type {Node} */ (event.target))) menu.removeAttribute("open");
});

const asked = findCaller();

async function start() {
  // A frame without a person and their rows shows nothing for as long, and would delay the one with them.
  const first = Promise.all([asked, firstAnswer()]).catch(() => {});
  await Promise.race([first, new Promise((resolve) => setTimeout(resolve, NOTHING_SHOWN))]);
  const place = document.getElementById("console");
  if (!place) return;
  place.replaceChildren();
  render(h(Console, {}), place);
  follow();
}
void start();
