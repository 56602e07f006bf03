/** What is still on the page. */
import { useEffect, useRef } from "../vendor/preact-hooks.js";

/** Whether a component is still there when an answer comes: what it asked for must not lead somebody away from elsewhere. */
export function useIsShown() {
  const isShown = useRef(true);
  useEffect(() => {
    isShown.current = true;
    return () => void (isShown.current = false);
  }, []);
  return isShown;
}

/** If what had the focus is gone after a change, the keyboard goes on from the beginning of the screen. @param {string} key */
export function useLostFocus(key) {
  const before = useRef(key);
  useEffect(() => {
    if (before.current !== key && document.activeElement === document.body) document.getElementById("content")?.focus({ preventScroll: true });
    before.current = key;
  }, [key]);
}
