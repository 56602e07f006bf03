/** A question that one screen hands to the playground: in memory, because an address never contains prompts. */
/** @type {{system: string, prompt: string} | null} */
let carried = null;

/** @param {any} sample a sample answer of a run */
export function carry(sample) {
  carried = sample ? { system: String(sample.system ?? ""), prompt: String(sample.prompt ?? "") } : null;
}

/** What was handed over, once. */
export function takeCarried() {
  const taken = carried;
  carried = null;
  return taken;
}
