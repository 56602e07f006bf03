/** `j` and `k` move the focus over the rows of a screen. */
import { useEffect } from "../vendor/preact-hooks.js";

/** Whether a dialog is open: keys of the page are not meant then. */
export function isInDialog() {
  return document.querySelector("dialog[open]") !== null;
}

/** @param {string} selector of what takes the focus in each row */
export function useRowKeys(selector) {
  useEffect(() => {
    /** @param {KeyboardEvent} event */
    const move = (event) => {
      if (!["j", "k"].includes(event.key) || event.ctrlKey || event.metaKey || isInDialog() || /^(INPUT|SELECT|TEXTAREA)$/.test(/** @type {Element} */ (event.target).tagName)) return;
      const rows = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(selector)]);
      const now = rows.indexOf(/** @type {HTMLElement} */ (document.activeElement));
      rows[Math.min(rows.length - 1, Math.max(0, now + (event.key === "j" ? 1 : -1)))]?.focus();
    };
    addEventListener("keydown", move);
    return () => removeEventListener("keydown", move);
  }, [selector]);
}
