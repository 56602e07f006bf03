/** What answers under a name, and what has to be shown before that changes: aliases with their moves, policies, receipts. */
import { useEffect, useMemo, useRef, useState } from "../vendor/preact-hooks.js";
import { address, to } from "../lib/address.js";
import { useObject } from "../lib/cache.js";
import { ApiError, call, caller, missingRole, succeed } from "../lib/client.js";
import { counted, exact, model, percent, plain, short, tail, whole } from "../lib/format.js";
import { CopyAs, asCurl, asHttpx, quoted } from "../parts/copy_as.js";
import { h, html } from "../parts/html.js";
import { Badge, Empty, Failure, Loading, NotThere, Stale, Time } from "../parts/state.js";

const TABS = [["", "aliases"], ["policies", "policies"], ["receipts", "receipts"]];
const VERBS = /** @type {Record<string, string>} */ ({ set: "moved", rollback: "rolled back", delete: "deleted" });
const MOST_TARGETS = 16;

/** @param {{parts: string[], query: URLSearchParams}} props */
export function Gates({ parts, query }) {
  if (parts[0]) return h(OneAlias, { key: parts[0], name: parts[0] });
  const open = TABS.find(([tab]) => tab === query.get("tab"))?.[0] || "";
  const path = open === "policies" ? "/v1/policies" : open === "receipts" ? "/v1/receipts?limit=50" : "/v1/aliases";
  return html`<div class="head"><h1>Gates</h1>${h(CopyAs, { curl: asCurl(path), python: asHttpx(path), mens: `mens ${quoted(open || "aliases")} list` })}</div>
    <nav class="tabs" aria-label="Parts of the gates">${TABS.map(([tab, title]) => html`<a key=${tab} href=${to(["gates"], { tab })} aria-current=${open === tab ? "page" : undefined}>${title}</a>`)}</nav>
    ${open === "policies" ? h(Policies, {}) : open === "receipts" ? h(Receipts, { id: query.get("receipt"), adapter: query.get("adapter") }) : h(Aliases, {})}`;
}

/**
 * The shares of an alias's targets.
 * @param {{adapter: string, weight: number}[] | undefined} targets
 */
function shared(targets = []) {
  const sum = targets.reduce((total, target) => total + target.weight, 0);
  return targets.map((target) => ({ ...target, share: target.weight / sum }));
}

/** @param {{targets: any[] | undefined, shadow?: any}} props */
function Targets({ targets, shadow }) {
  if (!targets) return html`<span class="faint">nothing</span>`;
  const all = shared(targets);
  return html`<span class="targets">${all.map((one) => html`<span key=${one.adapter} title=${plain(one.adapter)}>${all.length > 1 && html`<b>${percent(one.share)}</b> `}<code>${model(one.adapter)}</code></span>`)}
    ${shadow && html`<span class="faint">shadow: ${percent(shadow.share)} copied to <code>${model(shadow.adapter)}</code></span>`}</span>`;
}

// -- lists ------------------------------------------------------------------------------------------------------------

function Aliases() {
  const { data, error, at, failures, reload } = useObject("/v1/aliases");
  if (!data) return error ? h(Failure, { error, retry: reload }) : h(Loading, {});
  if (!data.data.length) return h(Empty, { title: "No aliases yet", children: html`<p>An alias is a name that keeps answering while the adapter behind it changes. A run makes one with its result if you write a name into its field <b>Alias</b>: <a href="#/new">start a run</a>.</p>` });
  return html`${h(Stale, { at, failures })}<div class="list ${failures >= 3 ? "old" : ""}" tabindex="0" role="group" aria-label="Aliases"><table><thead><tr>${["Alias", "Points to", "Governed by", "Moved"].map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
    <tbody>${data.data.map((/** @type {any} */ alias) => {
      const rule = alias.governed_by;
      return html`<tr key=${alias.tenant + alias.name}><td><a class="name" href=${to(["gates", alias.name])}>${plain(alias.name, 80)}</a></td><td>${h(Targets, alias)}</td>
        <td>${rule ? plain(rule.policy.name, 80) : html`<span class="faint">no policy</span>`}</td><td class="time">${h(Time, { time: alias.moved_at })}</td></tr>`;
    })}</tbody></table></div>`;
}

function Policies() {
  const { data, error, reload } = useObject("/v1/policies");
  const assignments = useObject("/v1/policy_assignments");
  if (!data || !assignments.data) return error || assignments.error ? h(Failure, { error: error || assignments.error, retry: reload }) : h(Loading, {});
  if (!data.data.length) return h(Empty, { title: "No policies yet", children: html`<p>A policy says what an adapter has to show before an alias moves to it.</p><pre tabindex="0" aria-label="commands">mens policies put support policy.yaml
mens policies assign alias:support support</pre>` });
  return html`<div class="stack">
    <section class="stack" aria-label="Who is governed"><div class="head"><h2>Who is governed</h2>${h(Assign, { policies: data.data, assignments: assignments.data.data, done: assignments.reload })}</div>
    ${assignments.data.data.length ? html`<div class="list" tabindex="0" role="group" aria-label="Assignments"><table><thead><tr>${["What", "Policy", "Changes"].map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
      <tbody>${assignments.data.data.map((/** @type {any} */ one) => html`<tr key=${one.tenant + one.scope}><td>${plain(one.scope, 100)}</td><td>${plain(one.policy.name, 80)} <code>${plain(one.policy.digest).slice(0, 8)}…</code></td><td class="number">${whole(one.version)}</td></tr>`)}</tbody></table></div>`
      : html`<p class="faint">No policy is assigned: aliases move without evidence.</p>`}</section>
    ${data.data.map((/** @type {any} */ policy) => html`<section key=${policy.name + policy.digest} class="card" aria-label="Policy ${plain(policy.name, 80)}"><header><h2>${plain(policy.name, 80)} <code>${plain(policy.digest).slice(0, 8)}…</code></h2><span class="faint">by ${plain(policy.created_by, 60)}, ${h(Time, { time: policy.created_at })}</span></header>
      <ul class="gates">${Object.entries(policy.policy.gates || {}).filter(([, gate]) => gate).map(([name, gate]) => html`<li key=${name}><b>${plain(name.replaceAll("_", " "))}</b>${/** @type {any} */ (gate).block === false ? html` <span class="faint">(tells, does not block)</span>` : ""}
        <span class="faint">${Object.entries(/** @type {any} */ (gate)).filter(([key, value]) => key !== "block" && value !== null).map(([key, value]) => `${key} ${plain(typeof value === "object" ? JSON.stringify(value) : value, 80)}`).join(", ")}</span></li>`)}</ul>
      <details><summary>The file</summary><pre tabindex="0" aria-label="Policy file">${policy.source.split("\n").map((/** @type {string} */ line) => plain(line, 500)).join("\n")}</pre></details></section>`)}</div>`;
}

/** @param {{id: string | null, adapter: string | null}} props */
function Receipts({ id, adapter }) {
  const { data, error, reload } = useObject(id ? null : `/v1/receipts?limit=50${adapter ? `&adapter=${encodeURIComponent(adapter)}` : ""}`);
  if (id) return h(OneReceipt, { id });
  if (!data) return error ? h(Failure, { error, retry: reload }) : h(Loading, {});
  if (!data.data.length) return h(Empty, { title: "No receipts yet", children: html`<p>A receipt is the outcome of judging an adapter by a policy. A run whose alias is governed makes one; so does</p><pre tabindex="0" aria-label="command">mens receipts create ADAPTER --alias NAME</pre>` });
  return html`<div class="list" tabindex="0" role="group" aria-label="Receipts"><table><thead><tr>${["Adapter", "Outcome", "Against", "Gates", "Judged"].map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
    <tbody>${data.data.map((/** @type {any} */ one) => html`<tr key=${one.id}><td><a href=${to(["gates"], { tab: "receipts", receipt: one.id })}>${model(one.adapter_id)}</a></td><td>${h(Outcome, { passed: one.passed })}</td>
      <td>${one.incumbent_id ? html`<code>${model(one.incumbent_id)}</code>` : html`<span class="faint">nothing</span>`}</td><td class="number">${whole(one.receipt.gates?.filter((/** @type {any} */ gate) => gate.passed).length)} of ${whole(one.receipt.gates?.length)} met</td><td class="time">${h(Time, { time: one.created_at })}</td></tr>`)}</tbody></table></div>`;
}

/** @param {{passed: boolean, status?: string}} props */
function Outcome({ passed, status }) {
  const word = status ? status.replaceAll("_", " ") : passed ? "passed" : "not passed";
  return h(Badge, { state: passed ? "succeeded" : "failed", word: plain(word, 40) });
}

/** A receipt as a list of conditions, each met or not, with its evidence. @param {{id: string}} props */
function OneReceipt({ id }) {
  const path = `/v1/receipts/${encodeURIComponent(id)}`;
  const { data: one, error, reload } = useObject(path);
  if (!one) return error ? h(Failure, { error, retry: reload, what: error.status === 404 ? "Receipt not found." : undefined }) : h(Loading, {});
  const isOver = Date.parse(one.valid_until) < Date.now();
  return html`<article class="stack" aria-label="Receipt"><section class="card"><header><h2><code>${model(one.adapter_id)}</code> against ${one.incumbent_id ? html`<code>${model(one.incumbent_id)}</code>` : "nothing"}</h2>${h(Outcome, { passed: one.passed })}</header>
    <p class="faint">By the policy ${plain(one.receipt.policy?.name || one.policy_digest, 80)}, <a href=${to(["runs", one.job_id])}>judged</a> ${h(Time, { time: one.created_at })}; ${isOver ? "too old to move an alias since" : "moves an alias until"} ${exact(one.valid_until)}.</p></section>
    ${(one.receipt.gates || []).map((/** @type {any} */ gate) => html`<section key=${gate.name} class="card gate" aria-label="Gate ${plain(gate.name, 60)}"><header><h2>${plain(gate.name.replaceAll("_", " "), 60)}</h2>${h(Outcome, { passed: gate.passed, status: gate.status })}${gate.block === false && html`<span class="faint">tells, does not block</span>`}</header>
      <p>${plain(gate.message, 2000)}</p>
      <p class="faint">${[gate.value !== null && gate.value !== undefined && `measured ${short(gate.value)}`, gate.bound !== null && gate.bound !== undefined && `asked ${short(gate.bound)}`, gate.n && counted(gate.n, "item"), gate.interval && `interval ${gate.interval.map(short).join(" to ")}`, gate.items_needed && `${counted(gate.items_needed, "item")} would decide`, gate.evidence && `evidence ${plain(gate.evidence).slice(0, 8)}…`].filter(Boolean).join(", ")}</p>
      ${gate.checks?.length > 1 && html`<details><summary>${whole(gate.checks.length)} checks</summary><ul class="gates">${gate.checks.map((/** @type {any} */ check) => html`<li key=${check.measure}><b>${plain(check.measure, 100)}</b>: ${plain(check.status.replaceAll("_", " "))}. ${plain(check.message, 1000)}</li>`)}</ul></details>`}</section>`)}</article>`;
}

// -- one alias --------------------------------------------------------------------------------------------------------

/** @param {{name: string}} props */
function OneAlias({ name }) {
  const path = `/v1/aliases/${encodeURIComponent(name)}`;
  const alias = useObject(path);
  const history = useObject(`${path}/history?limit=100`);
  const models = useObject("/v1/models");
  const [asked, setAsked] = useState(/** @type {{verb: "move" | "rollback" | "judge", version?: number} | null} */ (null));
  const reload = () => (alias.reload(), history.reload());
  const missing = missingRole("trainer");
  const isDeleted = alias.error?.status === 404 && history.data?.data.length > 0;
  if (!alias.data && !isDeleted) return h(NotThere, { title: "Alias", error: alias.error, retry: alias.reload, what: alias.error?.status === 404 ? "Alias not found." : undefined });
  const now = isDeleted ? null : alias.data;
  // Another tenant's: moving it makes an alias of one's own.
  const isForeign = !!now && now.tenant !== caller.value.tenant;
  const rule = now?.governed_by;
  const foreign = isForeign ? `it is an alias of ${plain(now.tenant, 60)}, whose people roll it back` : "";
  const moves = history.data?.data || [];
  return html`<p class="crumbs"><a href="#/gates">Gates</a></p>
    <div class="head"><h1>${plain(name, 100)}</h1>
      ${now && html`<button type="button" class="primary" disabled=${!!missing} title=${missing} onClick=${() => setAsked({ verb: "move" })}>${isForeign ? "Make your own…" : "Move or split…"}</button>`}
      <button type="button" disabled=${!!missing || isForeign || (moves.length < 2 && !!now)} title=${missing || foreign} onClick=${() => setAsked({ verb: "rollback" })}>Roll back…</button>
      ${now && html`<button type="button" disabled=${!!missing || !rule} title=${missing || (rule ? "" : "no policy governs it")} onClick=${() => setAsked({ verb: "judge" })}>Judge an adapter…</button>`}
      ${h(CopyAs, { curl: asCurl(path), python: asHttpx(path), mens: `mens aliases show ${quoted(name)}` })}</div>
    ${missing && html`<p class="faint">Moving it ${missing}.</p>`}
    ${isForeign && html`<p class="faint">It is an alias of ${plain(now.tenant, 60)}. You can make your own of this name, which hides it for your tenant; it stays as it is.</p>`}
    ${h(Stale, alias)}
    <div class="stack ${alias.failures >= 3 && now ? "old" : ""}">
    <section class="card" aria-label="Points to"><h2>Points to</h2>${now ? h(Targets, now) : html`<p class="faint">It is deleted. A roll-back restores it.</p>`}
      <p class="faint">${now ? html`Version ${whole(now.version)}, since ${h(Time, { time: now.moved_at })}. ` : ""}${rule ? html`Governed by the policy <a href=${to(["gates"], { tab: "policies" })}>${plain(rule.policy.name, 80)}</a> (${plain(rule.scope, 100)}).` : now ? "No policy governs it." : ""}</p>
      ${now && html`<p><a href=${to(["playground"], { left: name })}>Ask it</a> · <a href=${to(["gates"], { tab: "receipts", adapter: now.adapter_id })}>its adapter's receipts</a></p>`}</section>
    <section class="stack" aria-label="Moves"><h2>Moves</h2>${history.data ? h(Moves, { moves, missing: missing || foreign, back: (/** @type {number} */ version) => setAsked({ verb: "rollback", version }) }) : history.error ? h(Failure, { error: history.error, retry: history.reload }) : h(Loading, {})}</section></div>
    ${asked && h(Dialog, { key: `${asked.verb} ${asked.version}`, name, alias: now, moves, asked, rule, models: models.data?.data || [], reload, close: () => setAsked(null) })}`;
}

/** @param {{moves: any[], missing: string, back: (version: number) => void}} props */
function Moves({ moves, missing, back }) {
  return html`<div class="list scroll-x" tabindex="0" role="group" aria-label="Moves"><table><thead><tr>${["Version", "When", "Who", "To", "Why", "Evidence", ""].map((name) => html`<th key=${name} scope="col">${name || html`<span class="hidden">Roll back</span>`}</th>`)}</tr></thead>
    <tbody>${moves.map((move, place) => html`<tr key=${move.version}><td class="number">${whole(move.version)}</td><td class="time">${h(Time, { time: move.moved_at })}</td><td>${h(Actor, { move })}<small> ${plain(VERBS[move.verb] || move.verb)}</small></td>
      <td>${h(Targets, move.to || {})}</td><td>${plain(move.reason, 500) || html`<span class="faint">–</span>`}</td><td>${h(Evidence, { gate: move.gate })}</td>
      <td>${place > 0 && move.to && html`<button type="button" class="small" disabled=${!!missing} title=${missing} aria-label="Back to this: version ${move.version}" onClick=${() => back(move.version)}>Back to this</button>`}</td></tr>`)}</tbody></table></div>`;
}

/** @param {{move: any}} props */
function Actor({ move }) {
  return move.actor_id.startsWith("ftjob-") ? html`<a href=${to(["runs", move.actor_id])} title=${plain(move.actor_id)}>the run ${tail(move.actor_id)}</a>` : plain(move.actor, 60);
}

/** @param {{gate: any}} props */
function Evidence({ gate }) {
  if (!gate) return html`<span class="faint">–</span>`;
  if (gate.override) return html`<span class="different">override</span>`;
  const receipts = gate.receipts || [];
  return receipts.length ? html`${receipts.map((/** @type {any} */ one) => { const id = typeof one === "string" ? one : one.id; return html`<a key=${id} href=${to(["gates"], { tab: "receipts", receipt: id })}>receipt</a> `; })}` : html`<span class="faint">${plain(gate.policy?.name || "–", 60)}</span>`;
}

/**
 * Moves, splits, rolls back or judges, after it was confirmed.
 * @param {{name: string, alias: any, moves: any[], asked: {verb: "move" | "rollback" | "judge", version?: number}, rule: any, models: any[], reload: () => void, close: () => void}} props
 */
function Dialog({ name, alias, moves, asked, rule, models, reload, close }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  // What was seen when the dialog opened: the move is of that version and no other. Of another tenant's, one's own does not exist yet: version 0.
  const [seen, setSeen] = useState(!alias ? undefined : alias.tenant === caller.value.tenant ? alias.version : 0);
  const [targets, setTargets] = useState(/** @type {{adapter: string, weight: string}[]} */ ((alias?.targets || []).map((/** @type {any} */ one) => ({ adapter: one.adapter, weight: String(one.weight) }))));
  const [judged, setJudged] = useState("");
  const [reason, setReason] = useState("");
  const [isOverride, setOverride] = useState(false);
  const [typed, setTyped] = useState("");
  const [error, setError] = useState(/** @type {any} */ (null));
  const [isBusy, setBusy] = useState(false);
  const [job, setJob] = useState("");
  // One key for one adapter in one dialog: a second press, or one after an answer got lost, is the same job.
  const key = useMemo(() => crypto.randomUUID(), [judged]);
  useEffect(() => dialog.current?.showModal(), []);
  const noOverride = missingRole("admin");
  const base = models.find((one) => one.id === alias?.adapter_id)?.mens?.base_model;
  const adapters = models.filter((one) => ["adapter", "checkpoint"].includes(one.mens?.kind) && (!base || one.mens.base_model === base));
  const back = asked.version !== undefined ? moves.find((move) => move.version === asked.version)?.to : moves[0]?.from;
  const isForeign = !!alias && alias.tenant !== caller.value.tenant;
  const title = { move: isForeign ? `Make your own ${plain(name, 60)}, which hides the one of ${plain(alias.tenant, 60)}` : `Move ${plain(name, 60)}`, rollback: `Roll ${plain(name, 60)} back`, judge: `Judge an adapter for ${plain(name, 60)}` }[asked.verb];
  const isReady = asked.verb === "move" ? targets.every((one) => one.adapter && Number(one.weight) >= 1) && (!isOverride || (typed === name && reason.trim() !== "")) : asked.verb === "judge" ? !!judged : !!back;
  const moved = error?.code === "ALIAS_VERSION_CONFLICT" ? moves.find((move) => move.version === error.details.version) : null;
  const act = async () => {
    if (isBusy) return;
    setBusy(true);
    const path = `/v1/aliases/${encodeURIComponent(name)}`;
    const headers = seen === undefined ? undefined : { "If-Match": `"${seen}"` };
    try {
      if (asked.verb === "judge") {
        setJob((await call("/v1/receipts", { method: "POST", json: { adapter: judged, alias: name }, headers: { "Idempotency-Key": key } })).id);
        setBusy(false);
        return;
      }
      if (asked.verb === "rollback") await succeed(`${path}/rollback`, { method: "POST", headers, json: { ...(asked.version === undefined ? {} : { to_version: asked.version }), reason } });
      else await succeed(path, { method: "PUT", headers, json: { targets: targets.map((one) => ({ adapter: one.adapter, weight: Number(one.weight) })), ...(alias.shadow ? { shadow: alias.shadow } : {}), reason, ...(isOverride ? { override: true } : {}) } });
      reload();
      dialog.current?.close();
    } catch (refusal) {
      if (!(refusal instanceof ApiError)) throw refusal;
      if (refusal.code === "ALIAS_VERSION_CONFLICT") reload();
      setError(refusal);
      setBusy(false);
    }
  };
  const again = () => (setSeen(error.details.version), setError(null));
  const set = (/** @type {number} */ place, /** @type {any} */ change) => setTargets(targets.map((one, index) => (index === place ? { ...one, ...change } : one)));
  return html`<dialog ref=${dialog} aria-label=${title} onClose=${close}><header><h2>${title}</h2></header><div class="stack">
    ${job ? html`<p role="status">It is being judged: <a href=${to(["runs", job])}>the job</a> makes the receipt.</p>` : html`
    ${asked.verb !== "judge" && html`<dl class="from-to"><dt>from</dt><dd>${h(Targets, alias || {})}</dd>${asked.verb === "rollback" && html`<dt>to</dt><dd>${h(Targets, back || {})}</dd>`}</dl>`}
    ${asked.verb === "move" && html`<div class="stack" role="group" aria-label="To">${targets.map((one, place) => html`<div key=${place} class="target">
      ${h(AdapterChoice, { label: targets.length > 1 ? `Adapter ${place + 1}` : "Adapter", value: one.adapter, adapters, set: (/** @type {string} */ adapter) => set(place, { adapter }) })}
      ${targets.length > 1 && html`<label>Weight <input type="number" min="1" max="1000000" aria-label="Weight ${place + 1}" value=${one.weight} onInput=${(/** @type {any} */ event) => set(place, { weight: event.target.value })} /></label>
        <button type="button" class="small" aria-label="Leave out adapter ${place + 1}" onClick=${() => setTargets(targets.filter((_, index) => index !== place))}><span aria-hidden="true">×</span></button>`}</div>`)}
      ${targets.length < MOST_TARGETS && html`<div><button type="button" class="small" onClick=${() => setTargets([...targets, { adapter: "", weight: "10" }])}>Split with another adapter</button></div>`}
      ${targets.length > 1 && html`<p class="faint">Shares are of callers: the same caller always gets the same adapter.</p>`}</div>`}
    ${asked.verb === "judge" && html`${h(AdapterChoice, { label: "Adapter", value: judged, adapters, set: setJudged })}<p class="faint">Both it and the present adapter answer the policy's items, which counts in the usage. Nothing moves.</p>`}
    ${asked.verb !== "judge" && html`<label class="field">Why <input type="text" maxlength="500" value=${reason} placeholder="kept in the history" onInput=${(/** @type {any} */ event) => setReason(event.target.value)} /></label>`}
    ${asked.verb === "move" && rule && html`<div class="switches"><label><input type="checkbox" checked=${isOverride} disabled=${!!noOverride} onChange=${() => setOverride(!isOverride)} /> move without the evidence that ${plain(rule.policy.name, 60)} asks</label>${noOverride && html`<span class="faint">${noOverride}</span>`}</div>
      ${isOverride && html`<label class="field">Type the alias's name, and why above <input type="text" autocomplete="off" spellcheck="false" value=${typed} onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} /></label>`}`}
    ${error && (error.code === "ALIAS_VERSION_CONFLICT" ? html`<p class="notice" role="alert">It moved meanwhile${moved ? html`: ${h(Actor, { move: moved })} ${plain(VERBS[moved.verb] || moved.verb)} it ${h(Time, { time: moved.moved_at })}${moved.reason ? `, “${plain(moved.reason, 200)}”` : ""}` : ""}. Look at what it points to now, above.</p>` : html`<div>${h(Failure, { error, what: "It did not move" })}
      ${(error.details.gates || []).length > 0 && html`<ul class="gates">${error.details.gates.map((/** @type {any} */ gate) => html`<li key=${gate.name}><b>${plain(gate.name, 60)}</b>: ${plain(gate.message, 500)}</li>`)}</ul>`}</div>`)}`}
    </div><footer><button type="button" onClick=${() => dialog.current?.close()}>${job ? "Close" : "Back"}</button>
      ${!job && (error?.code === "ALIAS_VERSION_CONFLICT" ? html`<button type="button" class="primary" onClick=${again}>Decide again</button>`
        : html`<button type="button" class=${asked.verb === "rollback" || isOverride ? "danger" : "primary"} disabled=${!isReady || isBusy} onClick=${() => void act()}>${{ move: isForeign ? "Make it" : "Move", rollback: "Roll back", judge: "Judge" }[asked.verb]}</button>`)}</footer></dialog>`;
}

/** @param {{label: string, value: string, adapters: any[], set: (adapter: string) => void}} props */
function AdapterChoice({ label, value, adapters, set }) {
  const isKnown = !value || adapters.some((one) => one.id === value);
  return html`<label class="field">${label} <select value=${value} onChange=${(/** @type {any} */ event) => set(event.target.value)}><option value="">choose an adapter</option>
    ${!isKnown && html`<option value=${value}>${model(value)}</option>`}${adapters.map((one) => html`<option key=${one.id} value=${one.id}>${model(one.id)}${one.mens.kind === "checkpoint" ? `, step ${one.mens.step}` : ""}</option>`)}</select></label>`;
}

/** @param {{policies: any[], assignments: any[], done: () => void}} props */
function Assign({ policies, assignments, done }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const aliases = useObject("/v1/aliases");
  const [scope, setScope] = useState("");
  const [policy, setPolicy] = useState("");
  const [reason, setReason] = useState("");
  const [error, setError] = useState(/** @type {any} */ (null));
  const [isBusy, setBusy] = useState(false);
  const missing = missingRole("trainer");
  // What governs an alias already, an admin alone may change.
  const isGoverned = scope === "tenant" || !!aliases.data?.data.find((/** @type {any} */ one) => `alias:${one.name}` === scope)?.governed_by;
  const refused = scope && isGoverned ? missingRole("admin") : "";
  const names = [...new Set(policies.map((one) => one.name))];
  const act = async () => {
    if (isBusy) return;
    setBusy(true);
    setError(null);
    try {
      await call(`/v1/policy_assignments/${encodeURIComponent(scope)}`, { method: "PUT", json: { policy, reason } });
      dialog.current?.close();
      done();
      aliases.reload();
    } catch (refusal) {
      if (!(refusal instanceof ApiError)) throw refusal;
      setError(refusal);
    }
    setBusy(false);
  };
  return html`<button type="button" disabled=${!!missing} title=${missing} onClick=${() => (setError(null), dialog.current?.showModal())}>Assign a policy…</button>${missing && html`<span class="faint">${missing}</span>`}
    <dialog ref=${dialog} aria-label="Assign a policy"><header><h2>Assign a policy</h2></header><div class="stack">
      <label class="field">To <select value=${scope} onChange=${(/** @type {any} */ event) => setScope(event.target.value)}><option value="">choose</option>${(aliases.data?.data || []).map((/** @type {any} */ one) => html`<option key=${one.name} value=${`alias:${one.name}`}>the alias ${plain(one.name, 60)}</option>`)}<option value="tenant">all aliases of the tenant</option></select></label>
      <label class="field">Policy <select value=${policy} onChange=${(/** @type {any} */ event) => setPolicy(event.target.value)}><option value="">choose</option>${names.map((one) => html`<option key=${one} value=${one}>${plain(one, 60)}</option>`)}</select></label>
      <label class="field">Why <input type="text" maxlength="500" value=${reason} onInput=${(/** @type {any} */ event) => setReason(event.target.value)} /></label>
      ${refused && html`<p class="faint">Changing what governs ${refused}.</p>`}${error && h(Failure, { error, what: "Not assigned" })}</div>
      <footer><button type="button" onClick=${() => dialog.current?.close()}>Back</button><button type="button" class="primary" disabled=${!scope || !policy || !!refused || isBusy} onClick=${() => void act()}>Assign</button></footer></dialog>`;
}
