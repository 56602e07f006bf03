/** Light or dark: as the system says, or as the switch does. */
import { signal } from "../vendor/signals.js";

const KEY = "mens.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");
/** The scheme that is shown. */
export const theme = signal(/** @type {"light" | "dark"} */ ("light"));

function apply() {
  const chosen = localStorage.getItem(KEY);
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  theme.value = (chosen || (dark.matches ? "dark" : "light")) === "dark" ? "dark" : "light";
}

/** Show the other one; the system's own choice needs no memory. */
export function switchTheme() {
  const next = theme.peek() === "dark" ? "light" : "dark";
  if (next === (dark.matches ? "dark" : "light")) localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, next);
  apply();
}

dark.addEventListener("change", apply);
apply();
