"""/v1/tenants: the figures of every tenant that operators see."""

from __future__ import annotations

from fastapi.testclient import TestClient

from tests.support.tenants import ACME, OTHER, Installation


def test_an_operator_sees_every_tenant_and_the_keys_of_one(client: TestClient) -> None:
    installation = Installation(client.app)
    installation.file(ACME)
    installation.key(OTHER)
    listed = {one["tenant"]: one for one in client.get("/v1/tenants").json()["data"]}
    assert (listed[ACME]["files"], listed[ACME]["valid_keys"], listed[OTHER]["valid_keys"]) == (1, 0, 1)
    record = client.get(f"/v1/tenants/{OTHER}").json()
    assert [key["tenant"] for key in record["keys"]] == [OTHER]
    assert not {"secret", "secret_sha256"} & record["keys"][0].keys()
    missing = client.get("/v1/tenants/nobody")
    assert (missing.status_code, missing.json()["error"]["mens"]["code"]) == (404, "TENANT_NOT_FOUND")
