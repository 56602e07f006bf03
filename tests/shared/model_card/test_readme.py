"""The README of a stored adapter: the fields that the hub reads, the text for people, and that nothing becomes markup
by accident.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

from shared.artifacts.manifests import AdapterManifest, ParentRef
from shared.base_models.catalog import HubSource
from shared.contract.choices import AdapterMethod
from shared.contract.sections import ProvenanceSection
from shared.model_card.readme import AdapterRecord, CardReceipt, write_readme
from shared.model_card.self_evaluation import KEY, PairedMeasure, RowSource, SampleAnswer, SelfEvaluation
from tests.support.exported_adapter import LINEAGE, store_small_adapter

EVIL = "Evil | <script>alert(1)</script> [x](http://e) `code` **bold**\n---\nlicense: mit\n# Heading"
SHA = "a" * 64


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> AdapterManifest:
    return store_small_adapter(tmp_path_factory.mktemp("made"))[1]


def record(manifest: AdapterManifest, text: str = "An answer.", **changes: Any) -> AdapterRecord:
    sample = SampleAnswer(
        line=1,
        role="user",
        prompt=text,
        turns=1,
        reference=text,
        base=text,
        tuned=text,
        base_ended=True,
        tuned_ended=True,
    )
    evaluation = SelfEvaluation(
        source=RowSource.HELD_OUT,
        rows=9,
        rows_available=9,
        tokens=30,
        loss=PairedMeasure(base=2.5, tuned=1.25, row_difference=-1.2, interval=(-1.4, -1.0)),
        token_accuracy=None,
        sample_answers=(sample,),
    )
    fields: dict[str, Any] = {
        "metrics": {KEY: evaluation.model_dump(mode="json")},
        "certificates": {
            "http://secret:1": {
                "failed": ["effect"],
                "effect_rms_nats": 0.0001,
                "parity": {"base_shift_rms_nats": None},
            }
        },
        "license": "mit",
        "job": {
            "plan": {
                "train": {"rows": 40, "sha256": SHA},
                "validation": None,
                "validation_rows": 4,
                "optimizer_steps": 90,
            },
            "contract": {
                "adapter": {"rank": 16},
                "exec": {"learning_rate": 0.001, "epochs": 3, "warmup_steps": 50},
            },
            "result": {"planned_steps": 70},
        },
    }
    return AdapterRecord(manifest=manifest, **fields | changes)


def front_matter(card: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(card.split("---\n", 2)[1])
    return found


def html(card: str) -> str:
    return MarkdownIt("commonmark").enable("table").render(card.split("---\n", 2)[2])


def test_the_hub_reads_base_licence_and_library(manifest: AdapterManifest, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    card = write_readme(record(manifest))
    assert front_matter(card) == {
        "base_model": "tiny",
        "base_model_relation": "adapter",
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["lora", "qlora", "mens"],
        "license": "mit",
    }
    (tmp_path / "README.md").write_text(card)
    assert ModelCard.load(tmp_path / "README.md").data.license == "mit"


def test_the_contracts_licence_goes_before_the_catalogues(manifest: AdapterManifest) -> None:
    said = ProvenanceSection(upstream_model_id="org/base", license_class="cc-by-4.0", attribution_required=True)
    card = write_readme(record(manifest.model_copy(update={"provenance": said})))
    assert (front_matter(card)["base_model"], front_matter(card)["license"]) == ("org/base", "cc-by-4.0")
    assert "Attribution required" in card
    assert "license" not in front_matter(write_readme(record(manifest, license=None)))


def test_a_hub_base_is_named_by_its_repository(manifest: AdapterManifest) -> None:
    """The hub resolves `base_model`, and a catalogue's name means nothing there."""
    source = HubSource(repo="Qwen/Qwen3-0.6B", revision="c" * 40)
    card = write_readme(record(manifest, repository=source))
    assert front_matter(card)["base_model"] == "Qwen/Qwen3-0.6B"
    assert f"<td>Qwen/Qwen3-0.6B, commit {'c' * 40}</td>" in html(card)
    said = manifest.model_copy(update={"provenance": ProvenanceSection(upstream_model_id="org/base")})
    assert front_matter(write_readme(record(said, repository=source)))["base_model"] == "org/base"


def test_models_that_wrote_rows_are_named_with_their_terms(manifest: AdapterManifest) -> None:
    said = ProvenanceSection(answer_models=("large-2 (https://example.com/v1): permits_training",))
    card = html(write_readme(record(manifest.model_copy(update={"provenance": said}))))
    assert "<strong>Answers of models.</strong>" in card
    assert "large-2 (https://example.com/v1): permits_training" in card
    assert "Answers of models" not in write_readme(record(manifest))


def test_people_read_what_it_was_made_from_and_how_it_did(manifest: AdapterManifest) -> None:
    shown = html(write_readme(record(manifest)))
    for cells in (
        "<td>train: rows</td>\n<td>40</td>",
        f"<td>train: SHA-256 of the file</td>\n<td>{SHA}</td>",
        "<td>exec.learning_rate</td>\n<td>0.001</td>",
        "<td>2.5000</td>\n<td>1.2500</td>",
        "<td>failed: effect</td>\n<td>0.0001</td>\n<td>not measured</td>\n<td>not measured</td>",
    ):
        assert cells in shown
    assert "secret" not in shown


def test_the_recipe_is_that_of_the_run(manifest: AdapterManifest) -> None:
    made = record(manifest)
    assert made.job is not None
    shown = html(write_readme(record(manifest.model_copy(update={"step": 70}))))
    assert "<td>exec.warmup_steps</td>\n<td>7</td>" in shown
    assert "<td>exec.epochs</td>\n<td>3</td>" in shown
    checkpoint = html(write_readme(record(manifest.model_copy(update={"step": 14}))))
    assert "<td>exec.epochs</td>\n<td>3 planned; 14 of 70 steps were made</td>" in checkpoint
    unfinished = html(write_readme(record(manifest, job=made.job | {"result": {}})))
    assert "<td>exec.warmup_steps</td>\n<td>9</td>" in unfinished


@pytest.mark.parametrize(("method", "tags"), [("lora", ["lora", "mens"]), ("qlora", ["lora", "qlora", "mens"])])
def test_each_tag_is_listed_once(manifest: AdapterManifest, method: str, tags: list[str]) -> None:
    made = manifest.model_copy(update={"adapter_method": AdapterMethod(method)})
    assert front_matter(write_readme(record(made)))["tags"] == tags


def test_users_of_the_adapter_read_where_answers_end(manifest: AdapterManifest) -> None:
    measured = {"failed": [], "stop": {"tokens": ["<|im_end|>", "<|endoftext|>"], "missed": []}}
    shown = html(write_readme(record(manifest, certificates={"one": measured, "two": measured})))
    assert "<td>tokens that end an answer</td>\n<td>&lt;|im_end|&gt; &lt;|endoftext|&gt;</td>" in shown
    assert "tokens that end an answer" not in html(write_readme(record(manifest)))


def test_lineage_leads_back_to_data_code_and_receipts(manifest: AdapterManifest) -> None:
    receipt = CardReceipt(id="receipt-1", policy="strict", policy_digest="5" * 64, passed=True, digest="6" * 64)
    card = write_readme(record(manifest.model_copy(update={"lineage": LINEAGE}), receipts=(receipt,)))
    section = card.partition("## Lineage")[2].partition("## Limits")[0]
    assert manifest.source_digests
    facts = (*manifest.source_digests.values(), manifest.contract_digest, LINEAGE.code_digest)
    assert all(digest in section for digest in (*facts, LINEAGE.environment_digest, "commit abc", "torch 2.13.0"))
    assert "| receipt receipt-1 | passed, policy strict " in section
    assert "6" * 64 in section
    assert "sources: SHA-256" not in write_readme(record(manifest))


def test_a_continued_adapters_card_lists_those_that_it_started_from(manifest: AdapterManifest) -> None:
    chain = tuple(ParentRef(id=f"{name}@{SHA}", digest=SHA, step=step) for name, step in (("second", 9), ("first", 7)))
    card = write_readme(record(manifest, ancestors=chain))
    section = card.partition("## Started from")[2].partition("## ")[0]
    assert section.index("second@") < section.index("first@")
    assert "Started from" not in write_readme(record(manifest))


def test_what_is_not_known_is_left_out(manifest: AdapterManifest) -> None:
    bare = write_readme(record(manifest, metrics={}, certificates={}, job=None))
    assert "No serving replica has measured this adapter." in bare
    assert "Against its base" not in bare
    assert "## Data" not in bare


def test_equal_records_give_equal_bytes(manifest: AdapterManifest) -> None:
    assert write_readme(record(manifest)) == write_readme(record(manifest))


def test_no_text_is_markup(manifest: AdapterManifest) -> None:
    said = ProvenanceSection(upstream_model_id=EVIL, license_class=EVIL, attribution_required=True)
    evil = record(manifest.model_copy(update={"provenance": said, "base_model": EVIL}), text=EVIL, license=EVIL)
    card = write_readme(evil)
    for markup in ("<script", "<a ", "<strong>bold", "<hr"):
        assert markup not in html(card)
    assert html(card).count("<h1>") == 1
    assert front_matter(card)["license"] == "other"
