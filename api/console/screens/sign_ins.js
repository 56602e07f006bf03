/** Who is signed in to the console: one's own sign-ins; for an admin those of the tenant, each of which can be ended. */
import { useState } from "../vendor/preact-hooks.js";
import { useObject } from "../lib/cache.js";
import { call, caller } from "../lib/client.js";
import { exact, plain, tail } from "../lib/format.js";
import { Confirm } from "../parts/confirm.js";
import { asCurl, asHttpx } from "../parts/copy_as.js";
import { h, html } from "../parts/html.js";
import { Failure, Loading, Stale, Time } from "../parts/state.js";

const PATH = "/v1/sign_ins";

export function copiesOfSignIns() {
  return { curl: asCurl(PATH), python: asHttpx(PATH) };
}

export function SignIns() {
  const { data, error, at, failures, reload } = useObject(PATH);
  const [asked, setAsked] = useState(/** @type {any} */ (null));
  if (!data) return error ? h(Failure, { error, retry: reload }) : h(Loading, {});
  const isAdmin = caller.value.role === "admin";
  return html`<div class="stack">${h(Stale, { at, failures })}
    <p class="faint">${isAdmin ? `Everybody who is signed in to the console with a key of the tenant ${plain(caller.value.tenant, 60)}, the newest first.` : "Where you are signed in to the console, the newest first."} An ended sign-in is refused within a second; the key stays valid.</p>
    <div class="list ${failures >= 3 ? "old" : ""}" tabindex="0" role="group" aria-label="Sign-ins"><table><thead><tr>${["Who", "Signed in", "Last used", "Ends at the latest", ""].map((name) => html`<th key=${name} scope="col">${name || html`<span class="hidden">End</span>`}</th>`)}</tr></thead>
      <tbody>${data.data.map((/** @type {any} */ one) => html`<tr key=${one.id}><td>${plain(one.key_name, 80)} <small class="faint" title=${plain(one.id)}>${tail(one.id)}</small></td>
        <td class="time">${h(Time, { time: one.created_at })}</td><td class="time">${h(Time, { time: one.last_used_at })}</td><td class="time">${exact(one.expires_at)}</td>
        <td>${one.is_current ? html`<span class="faint">this one</span>` : html`<button type="button" class="small danger" aria-label="End the sign-in ${tail(one.id)} of ${plain(one.key_name, 80)}" onClick=${() => setAsked(one)}>End…</button>`}</td></tr>`)}</tbody></table></div>
    ${asked && h(Confirm, { title: `End the sign-in of ${plain(asked.key_name, 80)}?`, verb: "End it", failed: "Not ended", close: () => setAsked(null),
      act: async () => (await call(`${PATH}/${encodeURIComponent(asked.id)}`, { method: "DELETE" }), reload()),
      children: html`<p>Its page asks to sign in again. Who has the key can do that; to prevent it, revoke the key: <code>mens keys revoke</code>.</p>` })}</div>`;
}
