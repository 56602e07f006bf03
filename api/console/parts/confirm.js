/** A question before something that cannot be undone. */
import { useLayoutEffect, useRef, useState } from "../vendor/preact-hooks.js";
import { ApiError } from "../lib/client.js";
import { h, html } from "./html.js";
import { useIsShown } from "./shown.js";
import { Failure } from "./state.js";

/** @param {{title: string, verb: string, failed?: string, act: () => Promise<unknown>, close: () => void, children?: any}} props `close`: the dialog has closed */
export function Confirm({ title, verb, failed = "Refused", act, close, children }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [isBusy, setBusy] = useState(false);
  const isShown = useIsShown();
  useLayoutEffect(() => dialog.current?.showModal(), []); // before the next key
  const confirm = async () => {
    if (isBusy) return;
    setBusy(true);
    try {
      await act();
      dialog.current?.close();
      document.getElementById("content")?.focus(); // the button that asked may be gone
    } catch (refusal) {
      if (!(refusal instanceof ApiError)) throw refusal;
      if (isShown.current) setError(refusal);
    } finally {
      if (isShown.current) setBusy(false);
    }
  };
  return html`<dialog ref=${dialog} aria-label="Confirm" onClose=${close}><h2>${title}</h2>${children}
    ${error && h(Failure, { error, what: failed })}
    <footer><button type="button" onClick=${() => dialog.current?.close()}>Back</button><button type="button" class="primary" disabled=${isBusy} onClick=${() => void confirm()}>${verb}</button></footer></dialog>`;
}
