"""The chart renders manifests that match the strict schema of Kubernetes, and refuses unknown values."""

import copy
import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from api.polling.readiness import ANSWER_SECONDS
from tests.support.helm_chart import (
    KUBERNETES,
    MINIMAL,
    NO_SERVING,
    SERVING,
    SEVERAL,
    Chart,
    Document,
    Values,
    base,
    environment,
    of,
    pods,
)

SCHEDULING: Values = {
    "extraEnv": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}],
    "nodeSelector": {"pool": "mens"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["h200"]}]}]}}},
}  # fmt: skip
FULL: Values = {
    "fullnameOverride": "tuner",
    "image": {
        "tag": "1.2.3",
        "pullPolicy": "Always",
        "pullSecrets": ["pull"],
        "api": "registry.internal:5000/mens/api",
    },
    "secret": {"existing": "mens-secrets"},
    "catalog": MINIMAL["catalog"],
    "storage": {"existingClaim": "mens-claim"},
    "serviceAccount": {"create": False, "name": "trainer"},
    "ingress": {
        "enabled": True,
        "className": "nginx",
        "host": "mens.internal",
        "tlsSecret": "tls",
        "annotations": {"a": "b"},
    },
    "api": {
        "replicas": 3,
        "runtimeClassName": "gvisor",
        "maxFileBytes": 5368709120,
        "service": {"type": "NodePort", "port": 80},
        **SCHEDULING,
    },
    "worker": {"replicas": 4, "terminationGracePeriodSeconds": 300, "runtimeClassName": "nvidia", **SCHEDULING},
    "beat": SCHEDULING,
    "serving": {
        "models": MINIMAL["serving"]["models"],
        "urls": ["http://other:8001"],
        "runtimeClassName": "nvidia",
        **SCHEDULING,
    },
    "migration": {"backoffLimit": 0},
}
CASES = {"minimal": MINIMAL, "full": FULL, "no-serving": NO_SERVING, "several": SEVERAL}


@pytest.fixture
def chart(helm: Any, tmp_path: Path) -> Chart:
    return Chart(helm, tmp_path)


@pytest.fixture(params=CASES)
def documents(request: pytest.FixtureRequest, chart: Chart) -> list[Document]:
    return chart.render(CASES[request.param])


def with_value(path: str, value: Any) -> Values:
    values = copy.deepcopy(MINIMAL)
    *parents, last = path.split(".")
    place = values
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    return values


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_lint_finds_nothing(chart: Chart, values: Values) -> None:
    done = chart.run("lint", "--strict", values=values)
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


def test_every_document_is_valid_kubernetes(documents: list[Document]) -> None:
    for document in documents:
        # Raises on an unknown kind as well, which its command line only warns about.
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(names) == len(set(names))


def test_documents_of_a_release(chart: Chart) -> None:
    names = {(document["kind"], document["metadata"]["name"]) for document in chart.render(MINIMAL)}
    deployments = {("Deployment", name) for name in ["mens-api", "mens-worker", "mens-beat", SERVING]}
    services = {("Service", name) for name in ["mens-api", "mens-serving", SERVING]}
    assert names == deployments | services | {
        ("Job", "mens-migration"),
        ("Secret", "mens-migration"),
        ("Secret", "mens-secret"),
        ("ConfigMap", "mens-catalog"),
        ("PersistentVolumeClaim", "mens-data"),
        ("ServiceAccount", "mens"),
        ("Pod", "mens-test"),
        *(("NetworkPolicy", f"mens-{name}") for name in ["api", "worker", "beat", "serving", "migration", "test"]),
        *(("PodDisruptionBudget", name) for name in ["mens-api", "mens-worker", SERVING]),
    }
    full = chart.render(FULL)
    assert not [kind for kind in ["Secret", "PersistentVolumeClaim", "ServiceAccount"] if of(full, kind)]
    assert len(of(full, "Ingress")) == 1


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        ("secret.databaseUrl", "", "secret.databaseUrl: Does not match pattern"),
        ("secret.databaseUrl", "sqlite:///mens.db", "secret.databaseUrl: Does not match pattern"),
        ("secret.brokerUrl", "", "secret.brokerUrl: Does not match pattern"),
        ("secret.servingKey", "short", "secret.servingKey: String length"),
        ("secret.existing", "both", "secret.databaseUrl"),
        ("secret.password", "x", "Additional property password is not allowed"),
        ("catalog", {}, "catalog: bases is required"),
        ("catalog.bases", [], "catalog.bases: Array must have at least 1 items"),
        ("catalog.bases", [{**base("q", kind="hub"), "digests": {}}], "catalog.bases.0.digests: Must have at least 1"),
        ("serving.models", [{"replicas": 1}], "serving.models.0: base is required"),
        ("serving.models", [{"base": "q", "gpus": 1}], "Additional property gpus is not allowed"),
        (
            "serving.models",
            [{"base": "q", "maxLoras": 0}],
            "serving.models.0.maxLoras: Must be greater than or equal to 1",
        ),
        (
            "serving.models",
            [{"base": "unknown"}],
            "the catalog does not contain the base model unknown; it has qwen3-0.6b",
        ),
        ("serving.models", [{"base": "qwen3-0.6b"}] * 2, "two entries are named qwen3-0-6b"),
        ("serving.models", [{"base": "qwen3-0.6b", "name": "n" * 60}], "longer than the 63 characters"),
        ("serving.models", [], "serving.urls: Array must have at least 1 items"),
        ("serving.replicas", -1, "serving.replicas: Must be greater than or equal to 0"),
        ("serving.urls", ["a,b"], "serving.urls.0: Does not match pattern"),
        ("serving.device", "tpu", "serving.device"),
        ("serving.maxLoras", 0, "serving.maxLoras: Must be greater than or equal to 1"),
        ("serving.maxLoraRank", 513, "serving.maxLoraRank: Must be less than or equal to 512"),
        ("serving.gpuMemoryUtilization", 90, "serving.gpuMemoryUtilization: Must be less than or equal to 1"),
        ("serving.quantization", "bitsandbytes", "serving.quantization"),
        ("serving.toolParser", "--help", "serving.toolParser: Does not match pattern"),
        ("serving.tensorParallel", 2, "pipelineParallel is 2, but resources.limits has 1 nvidia.com/gpu"),
        ("api.replicas", 0, "api.replicas: Must be greater than or equal to 1"),
        ("api.maxFileBytes", "1GB", "api.maxFileBytes: Invalid type"),
        ("api.resources.limits", {"memory": None}, "memory is required"),
        ("worker.terminationGracePeriodSeconds", 5, "worker.terminationGracePeriodSeconds: Must be greater"),
        ("worker.gpus", 1, "Additional property gpus is not allowed"),
        ("beat.replicas", 2, "Additional property replicas is not allowed"),
        ("drainSeconds", -1, "drainSeconds: Must be greater than or equal to 0"),
        ("storage.size", "lots", "storage.size: Does not match pattern"),
        ("image.tag", "a b", "image.tag: Does not match pattern"),
        ("ingress.enabled", True, "ingress.host: Does not match pattern"),
        ("postgres", {"enabled": True}, "Additional property postgres is not allowed"),
    ],
)
def test_bad_values_are_refused(chart: Chart, path: str, value: Any, complaint: str) -> None:
    done = chart.run("template", "mens", values=with_value(path, value))
    assert done.returncode != 0
    assert complaint in done.stderr


def test_defaults_alone_name_what_is_missing(chart: Chart) -> None:
    done = chart.run("template", "mens", values={})
    for missing in ["secret.databaseUrl", "secret.brokerUrl", "secret.servingKey", "catalog: bases", "serving.urls"]:
        assert missing in done.stderr


def test_every_pod_is_confined(documents: list[Document]) -> None:
    for name, pod in pods(documents):
        assert pod["automountServiceAccountToken"] is False, name
        security = pod["securityContext"]
        assert security["runAsNonRoot"], name
        assert security["runAsUser"] == 10001, name
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod), name
        assert all("hostPath" not in volume for volume in pod["volumes"]), name
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, name
            assert {"name": "tmp", "mountPath": "/tmp"} in container["volumeMounts"], name
            mounts = {mount["name"] for mount in container["volumeMounts"]}
            assert mounts == {volume["name"] for volume in pod["volumes"]}, name


def test_what_the_engine_loads_is_in_a_volume_of_its_pod_alone(chart: Chart) -> None:
    (pod,) = [pod for name, pod in pods(chart.render(MINIMAL)) if name == "serving"]
    (mount,) = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == "private"]
    assert mount["mountPath"] == environment(pod)["MENS_SERVING_CACHE_DIR"]
    assert {"name": "private", "emptyDir": {}} in pod["volumes"]


def test_compiled_kernels_outlive_the_container_and_are_its_pods_alone(chart: Chart) -> None:
    for name, pod in pods(chart.render(MINIMAL)):
        mounts = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["mountPath"] == "/var/cache/mens"]
        assert bool(mounts) == (name in ("worker", "serving")), name
        assert not mounts or {"name": mounts[0]["name"], "emptyDir": {}} in pod["volumes"], name


@pytest.mark.parametrize(
    ("worker", "processes"),
    [
        ({}, None),
        ({"resources": {"limits": {"nvidia.com/gpu": 8}}}, "0"),
        ({"resources": {"limits": {"nvidia.com/gpu": None}}}, None),
        (
            {
                "resources": {"limits": {"nvidia.com/gpu": 8}},
                "extraEnv": [{"name": "MENS_TRAINER_PROCESSES", "value": "4"}],
            },
            "4",
        ),
    ],
    ids=["one GPU", "eight GPUs", "none", "the operator's number"],
)
def test_a_job_uses_all_gpus_of_its_pod(chart: Chart, worker: Values, processes: str | None) -> None:
    (pod,) = [pod for name, pod in pods(chart.render({**MINIMAL, "worker": worker})) if name == "worker"]
    given = [one.get("value") for one in pod["containers"][0]["env"] if one["name"] == "MENS_TRAINER_PROCESSES"]
    assert given == ([processes] if processes else [])


@pytest.mark.parametrize(("source", "read_only"), [({"kind": "local", "path": "x"}, True), ({"kind": "hub"}, None)])
def test_serving_writes_to_the_shared_volume_only_to_download(
    chart: Chart, source: Any, read_only: bool | None
) -> None:
    catalog = {"version": 1, "bases": [base("other", **source), base("qwen3-0.6b", **source)]}
    for name, pod in pods(chart.render({**MINIMAL, "catalog": catalog})):
        for mount in pod["containers"][0]["volumeMounts"]:
            if mount["name"] == "data":
                assert mount.get("readOnly") == (read_only if name == "serving" else None), name


def test_service_names_leak_into_no_environment(documents: list[Document]) -> None:
    # Kubernetes would set MENS_SERVING_PORT=tcp://… for the Service mens-serving.
    assert all(pod["enableServiceLinks"] is False for _, pod in pods(documents))


def test_every_container_has_resources_and_probes(documents: list[Document]) -> None:
    for name, pod in pods(documents):
        for container in pod["containers"]:
            assert {"cpu", "memory"} <= set(container["resources"]["requests"]), name
            assert "memory" in container["resources"]["limits"], name
            # A container without a Service is ready once its startup probe has passed.
            wanted = {
                "migration": set(),
                "test": set(),
                "worker": {"startupProbe", "livenessProbe"},
                "beat": {"startupProbe", "livenessProbe"},
            }.get(name, {"startupProbe", "livenessProbe", "readinessProbe"})
            assert {key for key in container if key.endswith("Probe")} == wanted, name


def test_probe_of_the_api_waits_longer_than_its_answer_takes(documents: list[Document]) -> None:
    """Else kubelet gives up before the 503 that says what is missing."""
    (api,) = [pod["containers"][0] for name, pod in pods(documents) if name == "api"]
    assert api["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert api["readinessProbe"]["timeoutSeconds"] > ANSWER_SECONDS


def test_services_reach_the_pods_they_name(documents: list[Document]) -> None:
    labels = {
        document["metadata"]["name"]: document["spec"]["template"]["metadata"]["labels"]
        for document in of(documents, "Deployment")
    }
    for service in of(documents, "Service"):
        name, selector = service["metadata"]["name"], service["spec"]["selector"].items()
        selected = {each for each, found in labels.items() if selector <= found.items()}
        serving = {each for each in labels if "-serving-" in each}
        assert selected == (serving if name.endswith("-serving") else {name})


def test_secrets_stay_in_secrets(documents: list[Document]) -> None:
    elsewhere = json.dumps([document for document in documents if document["kind"] != "Secret"])
    for secret in ["database-password", "broker-password", MINIMAL["secret"]["servingKey"]]:
        assert secret not in elsewhere


def test_each_tier_gets_the_secrets_it_needs(documents: list[Document]) -> None:
    given = {
        name: {
            entry["name"]
            for entry in pod["containers"][0].get("env", [])
            if entry["name"].startswith("MENS_") and "valueFrom" in entry
        }
        for name, pod in pods(documents)
    }
    control = {"MENS_DATABASE_URL", "MENS_BROKER_URL", "MENS_SERVING_KEY"}
    expected = {
        "api": control,
        "worker": control,
        "beat": control,
        "serving": {"MENS_SERVING_KEY"},
        "migration": {"MENS_DATABASE_URL"},
        "test": set(),
    }
    assert given == {name: expected[name] for name in given}


def test_migration_needs_nothing_of_the_release(documents: list[Document]) -> None:
    hooks = {"helm.sh/hook": "pre-install,pre-upgrade"}
    (job,) = of(documents, "Job")
    assert job["metadata"]["annotations"].items() >= hooks.items()
    pod = job["spec"]["template"]["spec"]
    assert "serviceAccountName" not in pod
    assert pod["volumes"] == [{"name": "tmp", "emptyDir": {}}]
    needed = environment(pod)["MENS_DATABASE_URL"]["secretKeyRef"]["name"]
    if needed != FULL["secret"]["existing"]:
        (secret,) = [secret for secret in of(documents, "Secret") if secret["metadata"]["name"] == needed]
        assert secret["metadata"]["annotations"].items() >= hooks.items()
        weights = [int(document["metadata"]["annotations"]["helm.sh/hook-weight"]) for document in (secret, job)]
        assert weights == sorted(set(weights))


def test_changed_catalogue_or_secret_rolls_the_pods(chart: Chart) -> None:
    def checksums(values: Values) -> set[str]:
        found = of(chart.render(values), "Deployment")
        return {document["spec"]["template"]["metadata"]["annotations"]["mens/checksum"] for document in found}

    changes = [
        ("catalog.version", 2),
        ("secret.servingKey", "another-key-another-key"),
        ("api.replicas", 3),
    ]
    before, catalogue, key, replicas = (
        checksums(values) for values in [MINIMAL, *(with_value(*change) for change in changes)]
    )
    assert len(before | catalogue | key) == 3
    assert replicas == before


def test_catalogue_arrives_unchanged(chart: Chart) -> None:
    for values in (MINIMAL, SEVERAL):
        (config,) = of(chart.render(values), "ConfigMap")
        assert json.loads(config["data"]["catalog.json"]) == values["catalog"]


def test_pod_grace_period_exceeds_the_drain_time(chart: Chart) -> None:
    found = dict(pods(chart.render({**MINIMAL, "drainSeconds": 600})))
    for name, more in (("api", 20), ("serving", 30)):
        assert environment(found[name])["MENS_DRAIN_SECONDS"] == "600"
        assert found[name]["terminationGracePeriodSeconds"] == 600 + more


def test_large_numbers_are_not_written_as_floats(chart: Chart) -> None:
    (api,) = [pod for name, pod in pods(chart.render(FULL)) if name == "api"]
    assert environment(api)["MENS_MAX_FILE_BYTES"] == "5368709120"


def test_trusted_proxies_reach_the_api(chart: Chart) -> None:
    trusting = {**MINIMAL, "api": {"trustedProxies": "10.42.0.0/16"}}
    found = [dict(pods(chart.render(values)))["api"] for values in (MINIMAL, trusting)]
    assert [environment(pod)["MENS_TRUSTED_PROXIES"] for pod in found] == ["", "10.42.0.0/16"]


def test_single_sign_on_reaches_the_api_with_its_secret_and_rules(chart: Chart) -> None:
    rules = [{"group": "ml, acme", "tenant": "acme", "role": "trainer"}]
    bundle = "-----BEGIN CERTIFICATE-----\nMII=\n-----END CERTIFICATE-----\n"
    oidc = {"issuer": "https://id.example", "clientId": "mens", "rules": rules, "caBundle": bundle}
    values = {**MINIMAL, "secret": {**MINIMAL["secret"], "oidcClientSecret": "hush"}, "api": {"oidc": oidc}}
    found = environment(dict(pods(chart.render(values)))["api"])
    assert (found["MENS_OIDC_ISSUER"], found["MENS_OIDC_CLIENT_ID"]) == ("https://id.example", "mens")
    assert json.loads(found["MENS_OIDC_RULES"]) == rules
    assert found["MENS_OIDC_CA_BUNDLE"] == bundle
    assert found["MENS_OIDC_CLIENT_SECRET"]["secretKeyRef"]["key"] == "MENS_OIDC_CLIENT_SECRET"
    assert not [name for name in environment(dict(pods(chart.render(MINIMAL)))["api"]) if "OIDC" in name]


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ({}, ""),
        ({"ingress": {"enabled": True, "host": "mens.example"}}, ""),
        ({"ingress": {"enabled": True, "host": "mens.example", "tlsSecret": "tls"}}, "https://mens.example"),
        (
            {"gateway": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["mens.example"]}},
            "https://mens.example",
        ),
        (
            {"ingress": {"enabled": True, "host": "mens.example"}, "api": {"publicUrl": "https://other.example"}},
            "https://other.example",
        ),
    ],
)
def test_people_sign_in_at_the_address_of_the_proxy(chart: Chart, values: dict[str, Any], address: str) -> None:
    versions = ("--api-versions", "gateway.networking.k8s.io/v1")
    found = dict(pods(chart.render({**MINIMAL, **values}, *versions)))
    assert environment(found["api"])["MENS_PUBLIC_URL"] == address


def test_single_control_worker_is_never_doubled(documents: list[Document]) -> None:
    (beat,) = [document for document in of(documents, "Deployment") if document["metadata"]["name"].endswith("-beat")]
    assert (beat["spec"]["replicas"], beat["spec"]["strategy"]) == (1, {"type": "Recreate"})


def test_every_tier_that_calls_replicas_knows_them(chart: Chart) -> None:
    places = {}
    for case, values in CASES.items():
        known = {
            (environment(pod)["MENS_SERVING_URLS"], environment(pod).get("MENS_SERVING_DNS"))
            for name, pod in pods(chart.render(values))
            if name in {"api", "worker", "beat"}
        }
        (places[case],) = known
    assert places == {
        "minimal": ("http://mens-serving:8001", None),
        "full": ("http://tuner-serving:8001,http://other:8001", None),
        "no-serving": ("http://a:8001,http://b:8001", None),
        "several": ("http://a:8001", "mens-serving:8001"),
    }


def test_chart_and_compose_file_agree(chart: Chart, root: Path) -> None:
    """Same tiers, same commands, same settings; a setting added to one is missed in the other."""
    compose = yaml.safe_load((root / "docker-compose.yml").read_text())["services"]
    bucket = {"s3": {"bucket": "mens", "endpoint": "http://s3:8333", "accessKeys": True}}
    values = {**MINIMAL, "storage": bucket}
    values["secret"] = {**MINIMAL["secret"], "s3AccessKeyId": "mens", "s3SecretAccessKey": "secret"}
    # A chart names these settings only where they have values; compose cannot leave one out.
    rules = [{"group": "ml", "tenant": "acme", "role": "trainer"}]
    values["api"] = {"oidc": {"issuer": "https://id.example", "clientId": "mens", "rules": rules}}
    # A pod of the chart has GPUs of its own, unless the operator has the cluster share them out.
    values["worker"] = {**MINIMAL.get("worker", {}), "extraEnv": [{"name": "MENS_TRAINER_GPU_SHARE", "value": "0.4"}]}
    for name, pod in pods(chart.render(values)):
        if name == "test":  # `helm test` alone runs it
            continue
        service = compose["migrate" if name == "migration" else name]
        (container,) = pod["containers"]
        assert set(environment(pod)) == set(service["environment"]), name
        assert container["image"] == service["image"], name
        dockerfile = (root / service["build"]["dockerfile"]).read_text().splitlines()
        default = json.loads(dockerfile[-1].removeprefix("CMD "))
        assert container["command"] == service.get("command", default), name
