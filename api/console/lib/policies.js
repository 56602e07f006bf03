/** Which policy governs an alias, by the order in which the server looks. */

const SHARED = "shared";

/**
 * The assignment that governs an alias for a tenant: of the alias itself, else of a tenant, else of the server. A shared alias is
 * governed by what governs it there too, and so is the tenant's own alias that hides it.
 * @param {any[] | undefined} assignments the tenant's and the shared ones
 * @param {string} name
 * @param {string} tenant who looks at it, and would move it
 * @param {string} [owner] whose alias it is
 */
export function governing(assignments, name, tenant, owner = tenant) {
  const own = `alias:${name}`;
  const find = (/** @type {string} */ of, /** @type {string} */ scope) => assignments?.find((one) => one.tenant === of && one.scope === scope);
  // The API does not list what an own alias hides; a policy for that name tells that it may.
  const owners = owner === tenant && !find(SHARED, own) ? [tenant] : [tenant, owner === tenant ? SHARED : owner];
  const scopes = [...owners.map((of) => [of, own]), ...owners.map((of) => [of, "tenant"]), [SHARED, "server"]];
  return scopes.map(([of, scope]) => find(of, scope)).find(Boolean);
}

/**
 * Whether assigning a policy changes what governs already, which an admin alone may.
 * @param {any[]} assignments
 * @param {string} scope
 * @param {string} tenant
 */
export function takesAdmin(assignments, scope, tenant) {
  return !scope.startsWith("alias:") || !!governing(assignments, scope.slice("alias:".length), tenant, SHARED);
}
