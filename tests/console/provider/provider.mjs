// An identity provider on loopback: panva's oidc-provider, certified by the OpenID Foundation, with its own pages to sign in.
// node provider.mjs PORT CLIENT SECRET CONSOLE: prints a line when it listens. Everyone's password is accepted; groups are by name.
import Provider from "oidc-provider";

const [port, client, secret, consoleUrl] = process.argv.slice(2);
const issuer = `http://127.0.0.1:${port}`;
const groups = { alice: ["everyone", "ml"], mallory: ["everyone"] };
const provider = new Provider(issuer, {
  clients: [
    {
      client_id: client,
      client_secret: secret,
      redirect_uris: [`${consoleUrl}/console/callback`],
      post_logout_redirect_uris: [`${consoleUrl}/`],
    },
  ],
  claims: { openid: ["sub"], email: ["email"], groups: ["groups"] },
  conformIdTokenClaims: false,
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@acme.example`, groups: groups[id] ?? [] }),
  }),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("listening"));
