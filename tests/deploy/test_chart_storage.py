"""Storage in the chart: one shared volume, or a bucket and a separate disk for each pod."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shared.settings import Settings
from tests.support.helm_chart import MINIMAL, Chart, Document, Values, base, environment, of, pods

TIERS = {"api", "worker", "beat", "serving"}
BUCKET: Values = {"bucket": "mens-prod", "endpoint": "https://s3.internal", "region": "eu-1", "pathStyle": True}
KEYS: Values = {**MINIMAL["secret"], "s3AccessKeyId": "the-access-key", "s3SecretAccessKey": "the-secret-key"}
IN_BUCKET: Values = {**MINIMAL, "secret": KEYS, "storage": {"s3": {**BUCKET, "accessKeys": True}}}


@pytest.fixture
def chart(helm: Any, tmp_path: Path) -> Chart:
    return Chart(helm, tmp_path)


def data_volume(pod: Document) -> Document:
    (found,) = [volume for volume in pod["volumes"] if volume["name"] == "data"]
    return {key: value for key, value in found.items() if key != "name"}


def test_with_a_bucket_pods_share_no_volume(chart: Chart) -> None:
    documents = chart.render(IN_BUCKET)
    assert not of(documents, "PersistentVolumeClaim")
    found = {name: data_volume(pod) for name, pod in pods(documents) if name in TIERS}
    assert found == {name: {"emptyDir": {"sizeLimit": "200Gi"}} for name in TIERS}


def test_disk_of_a_pod_may_be_of_a_class(chart: Chart) -> None:
    local = {**BUCKET, "localClassName": "fast", "localSize": "1Ti"}
    documents = chart.render({**MINIMAL, "storage": {"s3": local}})
    for name, pod in pods(documents):
        if name in TIERS:
            claim = data_volume(pod)["ephemeral"]["volumeClaimTemplate"]["spec"]
            assert claim["accessModes"] == ["ReadWriteOnce"], name
            assert (claim["storageClassName"], claim["resources"]["requests"]["storage"]) == ("fast", "1Ti"), name


def test_every_tier_knows_the_bucket(chart: Chart) -> None:
    for name, pod in pods(chart.render(IN_BUCKET)):
        found = environment(pod)
        if name not in TIERS:
            assert not [key for key in found if "S3" in key or "AWS" in key], name
            continue
        given = {key.removeprefix("MENS_").lower(): value for key, value in found.items() if "_S3_" in key}
        assert given.keys() <= Settings.model_fields.keys()
        assert (given["s3_bucket"], given["s3_endpoint"]) == ("mens-prod", "https://s3.internal")
        assert (given["s3_region"], given["s3_path_style"], given["s3_prefix"]) == ("eu-1", "true", "")
        assert found["MENS_CACHE_BYTES"] == "21474836480"
        for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            assert found[key] == {"secretKeyRef": {"name": "mens-secret", "key": key}}
        # Only the API needs the setting to fetch base models: it shares no hub cache with the others.
        assert found.get("MENS_FETCH_BASES") == ("true" if name == "api" else None)


def test_keys_are_in_the_secret_only(chart: Chart) -> None:
    documents = chart.render(IN_BUCKET)
    elsewhere = json.dumps([document for document in documents if document["kind"] != "Secret"])
    assert "the-access-key" not in elsewhere
    assert "the-secret-key" not in elsewhere


def test_with_a_role_no_key_is_needed(chart: Chart) -> None:
    documents = chart.render({**MINIMAL, "storage": {"s3": BUCKET}})
    assert "AWS_" not in json.dumps(documents)


def test_without_a_bucket_nothing_speaks_of_one(chart: Chart) -> None:
    documents = chart.render(MINIMAL)
    assert "_S3_" not in json.dumps(documents)
    (claim,) = of(documents, "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]


def test_base_models_on_a_claim_are_read_only(chart: Chart) -> None:
    catalog = {"version": 1, "bases": [base("qwen3-0.6b", kind="local", path="/models/qwen3")]}
    values = {**IN_BUCKET, "catalog": catalog, "baseModels": {"existingClaim": "bases"}}
    for name, pod in pods(chart.render(values)):
        mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
        if name in TIERS:
            assert mounts["models"] == {"name": "models", "mountPath": "/models", "readOnly": True}, name
            assert "readOnly" not in mounts["data"], name  # the pod's own disk, which holds its caches
        else:
            assert "models" not in mounts, name


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"storage": {"existingClaim": "claim", "s3": BUCKET}}, "storage.s3.bucket"),
        ({"storage": {"s3": {"accessKeys": True}}}, "storage.s3.accessKeys"),
        ({"storage": {"s3": {**BUCKET, "accessKeys": True}}}, "secret.s3AccessKeyId: String length"),
        ({"storage": {"s3": {**BUCKET, "endpoint": "s3.internal"}}}, "storage.s3.endpoint: Does not match pattern"),
        ({"storage": {"accessMode": "ReadOnlyMany"}}, "storage.accessMode"),
        (
            {
                "storage": {"s3": BUCKET},
                "catalog": {"version": 1, "bases": [base("q", kind="local", path="q")]},
                "serving": {"models": [{"base": "q"}]},
            },
            "catalog: q is a folder (kind local), and with storage.s3 pods do not share a volume",
        ),
    ],
)
def test_bad_values_are_refused(chart: Chart, values: Values, complaint: str) -> None:
    done = chart.run("template", "mens", values={**MINIMAL, **values})
    assert done.returncode
    assert complaint in done.stderr
