/** Whether a component is still on the page when an answer comes: what it asked for must not lead somebody away from elsewhere. */
import { useEffect, useRef } from "../vendor/preact-hooks.js";

export function useIsShown() {
  const isShown = useRef(true);
  useEffect(() => {
    isShown.current = true;
    return () => void (isShown.current = false);
  }, []);
  return isShown;
}
