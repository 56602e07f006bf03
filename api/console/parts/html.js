/** Templates. Elements are written in them; components are called by `h()` alone, because only there a type check sees their properties. */
import { Fragment, h } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export { Fragment, h };
