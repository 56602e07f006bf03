"""Certificates of merged models: each replica that serves one as its base is measured once after each of its starts.

A merged model has no adapter to switch off, so a replica's scores are compared with those that the merge recorded
(``merge_probes.json``): the merged model's own scores in float32 give the engine error, those of the base give the
effect. The verdicts are the same as for an adapter (`worker/jobs/certificates.py`). Until a replica has passed, the API
does not offer the model.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shared.artifacts.base_folders import locate_base
from shared.artifacts.merge_fidelity import PROBES_NAME, MergeProbes
from shared.base_models.catalog import BaseModelEntry, load_catalog
from shared.database.base_certificates import BaseCertificates
from shared.database.connection import Database
from shared.errors import ArtifactInvalid, Code, MensError
from shared.hashing import digest_file
from shared.replicas import ReplicaCapabilities, discover
from shared.tokenization.template_arguments import ChatOptions
from shared.tokenization.tokenizer import Tokenizer
from worker.jobs.certificates import CertificateLimits, Measurements, Scores, ServedBase, certificate
from worker.jobs.publish import measure_stop, measure_template, measure_tools
from worker.probe_chats import encode_chats
from worker.replica_client import BlockingReplicaClient
from worker.settings import WorkerSettings

REQUEST_SECONDS = 60.0
PROBES_DTYPE = "float32"
"""Dtype in which a merge computes its probes, independent of the served dtype: when a merge runs, no replica is known
yet.
"""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BaseCertifier:
    """Measures the replicas that serve merged models."""

    settings: WorkerSettings
    certificates: BaseCertificates

    def run_round(self) -> list[str]:
        """Measure every replica that was started since its last measurement.

        Returns:
            names of the replicas measured in this round.
        """
        catalog = load_catalog(self.settings.catalog_path)
        merged = {entry.digest: entry for entry in catalog.bases if entry.merged_from}
        if not merged:
            return []
        names, measured = [], []
        for url in discover(self.settings.serving_urls, self.settings.serving_dns):
            with BlockingReplicaClient(url, self.settings.serving_key.get_secret_value(), REQUEST_SECONDS) as replica:
                names.append(replica.name)
                try:
                    capabilities = replica.capabilities()
                    if entry := merged.get(capabilities.served_digest):
                        measured += [replica.name] if self._measure(replica, entry, capabilities) else []
                except MensError as error:
                    # It is starting, or is gone; an earlier failure stays until it can be measured again.
                    logger.info("the serving %s was not measured: %s", replica.name, error)
        self.certificates.keep_only(names)
        return measured

    def _measure(
        self, replica: BlockingReplicaClient, entry: BaseModelEntry, capabilities: ReplicaCapabilities
    ) -> bool:
        """Measure one replica, unless it was already measured since its last start; return whether it was measured."""
        earlier = {earlier_one.replica: earlier_one for earlier_one in self.certificates.of(entry.digest)}.get(
            replica.name
        )
        if earlier and earlier.instance == capabilities.instance:
            return False
        served = ServedBase(
            capabilities.base, capabilities.served_digest, capabilities.twin_of, capabilities.dtype or "bfloat16"
        )
        folder = locate_base(entry, self.settings)
        probes = read_probes(entry, folder / PROBES_NAME)
        tokenizer = Tokenizer.load(folder, ChatOptions(entry.template_arguments))
        report = measure(replica, served, probes, tokenizer, CertificateLimits(self.settings.effect_floor))
        self.certificates.store(entry.digest, replica.name, capabilities.instance, report)
        verdict = "passed" if report["passed"] else f"failed {', '.join(report['failed'])}"
        logger.info("%s on the serving %s: %s", entry.name, replica.name, verdict)
        return True


def read_probes(entry: BaseModelEntry, path: Path) -> MergeProbes:
    """Read the probes next to a merged model's files, and check that their digest is the one in the catalogue.

    Raises:
        ArtifactInvalid: ``BASE_DIGEST_MISMATCH``.
    """
    assert entry.merged_from is not None
    try:
        if digest_file(path) == entry.merged_from.probes_digest:
            return MergeProbes.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        pass
    raise ArtifactInvalid(
        Code.BASE_DIGEST_MISMATCH,
        f"{path.name} of the base model {entry.name} is not the file that the catalogue names.",
        remedy=f"Remove the base and add it again with `mens base from-merge {entry.merged_from.digest}`.",
        param=path.name,
    )


def measure(
    replica: BlockingReplicaClient,
    served: ServedBase,
    probes: MergeProbes,
    tokenizer: Tokenizer,
    limits: CertificateLimits,
) -> dict[str, Any]:
    """Return the certificate of a merged model on a replica that serves it as its base; it may have failed."""
    requests = [probe.model_dump(include={"token_ids", "positions"}) for probe in probes.probes]
    once, again = ([replica.scores(served.name, probe) for probe in requests] for _ in range(2))
    encoded = encode_chats(tokenizer)
    template = measure_template(replica, served.name, encoded, tokenizer.options.arguments)
    base: Scores = [probe.base for probe in probes.probes]
    reference: Scores = [probe.merged for probe in probes.probes]
    measured = Measurements(base, base, once, None, reference, served_again=again, reference_dtype=PROBES_DTYPE)
    stop = measure_stop(replica, served.name, encoded)
    tools = measure_tools(replica, served.name, encoded, tokenizer.options.arguments)
    return certificate(served, measured, template, stop, limits, tools)


def make_base_certifier(settings: WorkerSettings) -> BaseCertifier:
    """Return a certifier with the settings' database."""
    return BaseCertifier(settings, BaseCertificates(Database(settings.database_url)))
