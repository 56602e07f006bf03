/** Signing in: by a key, by the one-time code of a link, or through the identity provider. The address that was wanted is kept. */
import { useEffect, useState } from "../vendor/preact-hooks.js";
import { oneTimeCode, providerAnswer } from "../lib/address.js";
import { ApiError, call, caller, goToProvider, hasEnded, returnFromProvider, signIn } from "../lib/client.js";
import { plain } from "../lib/format.js";
import { html } from "../parts/html.js";
import { said } from "../parts/state.js";

export function SignIn() {
  const code = oneTimeCode.value;
  const [key, setKey] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (null));
  const [ways, setWays] = useState(/** @type {any} */ (null));
  useEffect(() => {
    document.title = "Sign in · Mens";
    call("/v1/sign_in").then(setWays, setError);
    const answer = providerAnswer.value;
    providerAnswer.value = null; // it counts once
    if (answer) void attempt(() => returnFromProvider(answer));
  }, []);

  const refused = ways?.refused;
  /** @param {() => Promise<void>} act */
  const attempt = async (act) => {
    setBusy(true);
    setError(null);
    try {
      await act();
      oneTimeCode.value = "";
    } catch (refusal) {
      if (!(refusal instanceof ApiError)) throw refusal;
      if (code) oneTimeCode.value = ""; // it counts once
      setError(refusal);
    }
    setBusy(false);
  };
  /** @param {{key?: string, code?: string}} secret */
  const send = (secret) => attempt(() => signIn(secret));
  /** @param {Event} event */
  const submit = (event) => {
    event.preventDefault();
    void send({ key: key.trim() });
  };
  return html`<main class="alone sign-in">
    <div class="card">
      <span class="mark large" aria-hidden="true"></span>
      <h1>Sign in to Mens</h1>
      ${hasEnded.value && html`<p class="notice" role="status">Your sign-in has ended: it expired, or its key was revoked. This page asks for nothing more until you sign in.</p>`}
      ${code
        ? html`<p>This link has a one-time code. Use it only if you, or <code>mens up</code>, made it just now.</p>
          <button class="primary" type="button" disabled=${isBusy} onClick=${() => void send({ code })}>Sign in with the code</button>
          <button type="button" onClick=${() => (oneTimeCode.value = "")}>${caller.value ? "Keep my sign-in" : "Use a key instead"}</button>`
        : html`<form onSubmit=${submit}>
          <label for="key">API key</label>
          <input id="key" type="password" autocomplete="off" spellcheck=${false} placeholder="mens-…" required value=${key}
            onInput=${(/** @type {any} */ event) => setKey(event.target.value)} />
          <button class="primary" type="submit" disabled=${isBusy || !key.trim() || !!refused}>${isBusy ? "Signing in…" : "Sign in"}</button>
        </form>
        ${ways?.ways.includes("oidc") && html`<button type="button" disabled=${isBusy} onClick=${() => void attempt(goToProvider)}>Single sign-on</button>`}`}
      ${refused && html`<div class="failure" role="alert"><p><code>${plain(refused.code)}</code> ${said(refused.message)}</p><p>${said(refused.remedy)}</p></div>`}
      ${error && html`<div class="failure" role="alert"><p><code>${plain(error.code)}</code> ${said(error.message)}</p>${error.remedy && html`<p>${said(error.remedy)}</p>`}</div>`}
      <p class="faint">Without a key at hand: <code>mens open</code> opens this page signed in. The page exchanges the key for a sign-in of at most 24 hours and keeps no key.</p>
    </div>
  </main>`;
}
