"""Helm installs each values file into a real API server, with pod security and network policies.

The server is the one of Kubernetes 1.20, the newest whose source Debian has; ``python -m tests.deploy.api_server.build FOLDER`` builds it, and
``MENS_TEST_KUBE_APISERVER=FOLDER/kube-apiserver`` names it. The server has neither nodes nor controllers: the tests
themselves create the pods that a controller would create from a template.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.api_server.server import POD_SECURITY, ApiServer, start_api_server
from tests.support.helm_chart import (
    CATALOGS,
    CUSTOM,
    MINIMAL,
    OPERATORS,
    SEVERAL,
    Chart,
    Document,
    Values,
    of,
    values_file,
)
from tests.support.waiting import eventually
from tests.system.fetched import custom_resource_definitions

PROGRAM = os.environ.get("MENS_TEST_KUBE_APISERVER", "")
pytestmark = pytest.mark.skipif(
    not PROGRAM, reason="MENS_TEST_KUBE_APISERVER names no kube-apiserver (tests/deploy/api_server/build.py builds one)"
)

COMPONENT = "app.kubernetes.io/component"
JOB: Document = {"apiVersion": "batch/v1", "kind": "Job"}
MONITORING = {"PodMonitor", "PrometheusRule"}
PLURALS = {
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): "httproutes",
    ("keda.sh/v1alpha1", "ScaledObject"): "scaledobjects",
    ("monitoring.coreos.com/v1", "PodMonitor"): "podmonitors",
    ("monitoring.coreos.com/v1", "PrometheusRule"): "prometheusrules",
}
ACCOUNT: Document = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
"""A controller puts it into each namespace."""
RESTRICTED: Document = {
    "apiVersion": "policy/v1beta1",
    "kind": "PodSecurityPolicy",
    "metadata": {
        "name": POD_SECURITY,
        "annotations": {"seccomp.security.alpha.kubernetes.io/allowedProfileNames": "runtime/default"},
    },
    "spec": {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "requiredDropCapabilities": ["ALL"],
        "volumes": ["configMap", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"],
        "hostNetwork": False,
        "hostIPC": False,
        "hostPID": False,
        "runAsUser": {"rule": "MustRunAsNonRoot"},
        "seLinux": {"rule": "RunAsAny"},
        "supplementalGroups": {"rule": "RunAsAny"},
        "fsGroup": {"rule": "RunAsAny"},
    },
}
"""The standard "restricted" in the form that 1.20 enforces: PodSecurity, the admission by a namespace's label, came with 1.22."""


@pytest.fixture(scope="module")
def server() -> Iterator[ApiServer]:
    """With the kinds of the operators and with pod security."""
    server = start_api_server(Path(PROGRAM))
    for definition in definitions():
        assert server.apply(definition, "").is_success
    for version, kind in PLURALS:
        document = {"apiVersion": version, "kind": kind, "metadata": {"name": "any"}}
        eventually(lambda document=document: knows(server, document), what=f"the server knows {kind}")
    assert server.apply(RESTRICTED, "").is_success
    # The server makes this namespace by itself; a controller would put an account into it.
    eventually(lambda: server.apply(ACCOUNT, "default").is_success, what="the namespace default is there")
    yield server
    server.stop()


@pytest.fixture(scope="module", params=CATALOGS)
def installed(server: ApiServer, helm: Any, tmp_path_factory: Any, request: pytest.FixtureRequest) -> Release:
    """A values file, installed, with the pods that its controllers would make."""
    release = Release(server, request.param, helm, tmp_path_factory.mktemp(request.param))
    release.change("install", values_file(request.param))
    release.run_pods()
    return release


def definitions() -> list[Document]:
    """Return definitions of the kinds that operators install, from their published types."""
    node = shutil.which("node")
    assert node, "node reads the operators' types (Debian: apt-get install nodejs)"
    kinds = [{"apiVersion": version, "kind": kind, "plural": plural} for (version, kind), plural in PLURALS.items()]
    done = subprocess.run(
        [node, custom_resource_definitions()],
        input=json.dumps(kinds), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: list[Document] = json.loads(done.stdout)
    return found


def knows(server: ApiServer, document: Document) -> bool:
    try:
        return server.ask("GET", server.collection(document, "default")).is_success
    except LookupError:
        return False


class Release:
    """One release of the chart, in a namespace of its own.

    Attributes:
        documents: what helm has put into the server, its hooks' too.
        pods: each as its template has it, and as the server took it; those of hooks included.
    """

    def __init__(self, server: ApiServer, namespace: str, helm: Any, folder: Path) -> None:
        self.server, self.namespace, self._helm, self._chart = server, namespace, helm, Chart(self._run, folder)
        self.documents: list[Document] = []
        self.pods: list[tuple[Document, Document]] = []
        labels = {"pod-security.kubernetes.io/enforce": POD_SECURITY}
        self._make({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": labels}})
        self._make(ACCOUNT)

    def change(self, verb: str, values: Values) -> None:
        """Install or upgrade."""
        with ThreadPoolExecutor(1) as thread:
            running = thread.submit(self._chart.run, verb, "mens", values=values)
            while not running.done():
                self._complete_jobs()
        done = running.result()
        assert done.returncode == 0, done.stderr
        texts = [self._run("get", what, "mens").stdout for what in ("manifest", "hooks")]
        self.documents = [document for text in texts for document in yaml.safe_load_all(text) if document]

    def run_pods(self) -> None:
        """Create the first pod of each Deployment, and the one of `helm test`."""
        for template in (document["spec"]["template"] for document in self.objects("apps/v1", "Deployment")):
            self._run_pod(template)
        for document in of(self.documents, "Pod"):
            self._run_pod(document)

    def objects(self, version: str, kind: str, labels: dict[str, str] | None = None) -> list[Document]:
        """Return the server's objects of a kind, all or those with some labels."""
        path = self.server.collection({"apiVersion": version, "kind": kind}, self.namespace)
        query = {"labelSelector": ",".join(f"{name}={value}" for name, value in (labels or {}).items())}
        found: list[Document] = self.server.ask("GET", path, params=query).json()["items"]
        return found

    def _make(self, document: Document) -> Document:
        done = self.server.create(document, self.namespace)
        assert done.is_success, done.text
        made: Document = done.json()
        return made

    def _run_pod(self, template: Document) -> None:
        metadata = {**template["metadata"], "name": f"pod-{len(self.pods)}"}
        made = self._make({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]})
        self.pods.append((template, made))

    def _complete_jobs(self) -> None:
        """Give each new job its pod and its end."""
        for job in self.objects("batch/v1", "Job"):
            if not job.get("status"):
                self._run_pod(job["spec"]["template"])
                status = {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]}
                headers = {"Content-Type": "application/merge-patch+json"}
                path = f"{self.server.path({**JOB, **job}, self.namespace)}/status"
                assert self.server.ask("PATCH", path, {"status": status}, headers=headers).is_success

    def _run(self, verb: str, *arguments: str) -> Any:
        return self._helm(verb, *arguments, "--namespace", self.namespace, "--kubeconfig", str(self.server.kubeconfig))


# -- what the chart makes is accepted ---------------------------------------------------------------------------------


def test_helm_installs_every_object(installed: Release) -> None:
    server, documents = installed.server, installed.documents
    assert {document["kind"] for document in documents} > {
        "Deployment",
        "Service",
        "NetworkPolicy",
        "PodDisruptionBudget",
    }
    custom = {document["kind"] for document in documents} & CUSTOM
    values = values_file(installed.namespace)
    assert custom == (CUSTOM if installed.namespace == "production" else MONITORING if "metrics" in values else set())
    for document in documents:
        if "helm.sh/hook" not in document["metadata"].get("annotations", {}):
            assert server.ask("GET", server.path(document, installed.namespace)).is_success


def test_no_object_has_a_field_that_the_server_would_drop(installed: Release) -> None:
    """Hooks included: server-side apply refuses what it does not know of Kubernetes' kinds; of others it keeps less than it was given."""
    for document in installed.documents:
        done = installed.server.apply(document, installed.namespace, dry_run=True)
        assert done.is_success, f"{document['kind']} {document['metadata']['name']}: {done.text}"
        if document["kind"] in CUSTOM:
            assert done.json()["spec"] == document["spec"]


def test_newer_kubernetes_gets_the_same_objects(installed: Release, helm: Any, tmp_path: Path) -> None:
    """All but the version of one kind, which 1.20 does not have and `test_values_files.py` checks by its schema."""
    namespace = f"--namespace={installed.namespace}"
    newer = Chart(helm, tmp_path).render(values_file(installed.namespace), namespace, *OPERATORS)
    for document in of(newer, "PodDisruptionBudget"):
        assert document["apiVersion"] == "policy/v1"
        document["apiVersion"] = "policy/v1beta1"
    order = lambda document: (document["kind"], document["metadata"]["name"])  # noqa: E731
    assert sorted(newer, key=order) == sorted(installed.documents, key=order)


def test_upgrade_changes_nothing_immutable(server: ApiServer, helm: Any, tmp_path: Path) -> None:
    """From one base model to two and back, with secrets that the chart makes."""
    release = Release(server, "upgrade", helm, tmp_path)
    for verb, values in (("install", MINIMAL), ("upgrade", SEVERAL), ("upgrade", MINIMAL)):
        release.change(verb, values)
    assert of(release.documents, "Secret")


# -- with pod security ------------------------------------------------------------------------------------------------


def test_pods_are_admitted_as_they_are(installed: Release) -> None:
    """The policy could also have changed a pod until it fits: no field of a pod's security is changed."""
    tiers = {made["metadata"]["labels"][COMPONENT] for _, made in installed.pods}
    assert tiers == {"api", "worker", "beat", "serving", "migration", "test"}
    for template, made in installed.pods:
        assert made["metadata"]["annotations"]["kubernetes.io/psp"] == POD_SECURITY
        assert security(made) == security(template)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({"hostNetwork": True}, "Host network is not allowed"),
        ({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}, "hostPath volumes are not allowed"),
        ({"container": {"runAsUser": 0}}, "running with the root UID is forbidden"),
        ({"container": {"privileged": True}}, "Privileged containers are not allowed"),
        ({"container": {"allowPrivilegeEscalation": True}}, "Allowing privilege escalation"),
        ({"container": {"capabilities": {"add": ["NET_ADMIN"]}}}, "capability may not be added"),
        ({"container": {"seccompProfile": {"type": "Unconfined"}}}, "unconfined is not an allowed seccomp profile"),
    ],
)
def test_pod_that_requests_more_is_refused(server: ApiServer, change: Values, refusal: str) -> None:
    container = {"name": "any", "image": "any", "securityContext": change.pop("container", {})}
    spec = {"automountServiceAccountToken": False, "securityContext": {"runAsNonRoot": True}, **change}
    spec["containers"] = [container]
    done = server.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any"}, "spec": spec}, "default")
    assert done.status_code == 403
    assert refusal in done.json()["message"]


# -- with network policies --------------------------------------------------------------------------------------------


def test_every_pod_is_behind_one_network_policy(installed: Release) -> None:
    """By the server's own reading of the selectors."""
    found: list[str] = []
    for policy in installed.objects("networking.k8s.io/v1", "NetworkPolicy"):
        pods = installed.objects("v1", "Pod", policy["spec"]["podSelector"]["matchLabels"])
        assert pods, policy["metadata"]["name"]
        found += [pod["metadata"]["name"] for pod in pods]
    assert sorted(found) == sorted(made["metadata"]["name"] for _, made in installed.pods)


def test_every_service_and_budget_has_pods(installed: Release) -> None:
    selectors = [service["spec"]["selector"] for service in installed.objects("v1", "Service")]
    budgets = installed.objects("policy/v1beta1", "PodDisruptionBudget")
    selectors += [budget["spec"]["selector"]["matchLabels"] for budget in budgets]
    assert len(selectors) == 6
    assert all(installed.objects("v1", "Pod", selector) for selector in selectors)


# -- and the server does refuse ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "path", "value", "refusal"),
    [
        ("Deployment", "spec.selector.matchLabels", {"app": "another"}, "does not match template `labels`"),
        ("Deployment", "spec.template.spec.containers.0.volumeMounts.0.name", "none", "Not found"),
        ("Deployment", "spec.template.spec.containers.0.livenessProbe.httpGet.port", "no port", "alpha-numeric"),
        ("Deployment", "spec.template.spec.containers.0.resources.requests.memory", "9999Gi", "must be less than or equal to"),
        ("Deployment", "spec.template.spec.containers.0.image_", "any", "not declared in schema"),
        ("NetworkPolicy", "spec.egress", [{"to": [{"ipBlock": {"cidr": "10.0.0.0/33"}}]}], "not a valid CIDR"),
        ("NetworkPolicy", "spec.ingress", [{"ports": [{"port": 70000}]}], "between 1 and 65535"),
        ("Service", "spec.ports.0.targetPort", "Not A Port", "targetPort"),
        ("PodDisruptionBudget", "spec.maxUnavailable", "half", "a valid percent string"),
        ("HorizontalPodAutoscaler", "spec.minReplicas", 99, "greater than or equal to `minReplicas`"),
        ("HTTPRoute", "spec.rules.0.backendRefs.0.port", "http", "expected numeric"),
        ("ScaledObject", "spec.minReplicaCount", "1", "must be of type number"),
        ("ScaledObject", "spec.triggers.0.type", None, "spec.triggers.type: Required"),
        ("PodMonitor", "spec.selector", None, "spec.selector: Required"),
        ("PrometheusRule", "spec.groups.0.rules.0.labels", "critical", "must be of type object"),
    ],
)  # fmt: skip
def test_broken_object_is_refused(
    server: ApiServer, helm: Any, tmp_path: Path, kind: str, path: str, value: Any, refusal: str
) -> None:
    """Most of these pass the schemas of Kubernetes."""
    rendered = Chart(helm, tmp_path).render(values_file("production"), *OPERATORS)
    document = next(document for document in rendered if document["kind"] == kind)
    document["apiVersion"] = document["apiVersion"].replace("policy/v1", "policy/v1beta1")
    assert server.apply(document, "default", dry_run=True).is_success
    change(document, path.split("."), value)
    done = server.apply(document, "default", dry_run=True)
    assert not done.is_success
    assert refusal in done.json()["message"]


def change(document: Any, path: list[str], value: Any) -> None:
    """Give a field a value, or take it away."""
    for name in path[:-1]:
        document = document[int(name) if isinstance(document, list) else name]
    if value is None:
        del document[path[-1]]
    else:
        document[path[-1]] = value


def security(pod: Document) -> list[Any]:
    return [part.get("securityContext") for part in (pod["spec"], *pod["spec"]["containers"])]
