/**
 * Calls that are not made more often than once in a time: one that comes too early is made at its end, and stands for all between.
 * @param {() => void} act
 * @param {number} pause ms
 */
export function paced(act, pause) {
  let last = -Infinity;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const now = () => {
    timer = undefined;
    last = Date.now();
    act();
  };
  return {
    ask() {
      if (timer !== undefined) return;
      const wait = last + pause - Date.now();
      if (wait <= 0) now();
      else timer = setTimeout(now, wait);
    },
    stop: () => clearTimeout(timer),
  };
}
