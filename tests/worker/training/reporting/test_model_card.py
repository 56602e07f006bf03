"""The model card: the fields that the hub reads, the text for people, and that nothing becomes markup by accident."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from xml.etree import ElementTree as ET

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from shared.artifacts.manifests import AdapterManifest
from shared.base_models.config import parse_model_config
from shared.contract.base_quant import with_pair
from shared.contract.choices import AdapterMethod, BaseQuant
from shared.contract.sections import ProvenanceSection
from worker.run_folder import read_json
from worker.training.checkpoint import Progress
from worker.training.data.prepared import PreparationReport
from worker.training.reporting.facts import FinishedRun
from worker.training.reporting.model_card import CARD_NAME, CURVES_NAME, draw_curves, model_card
from worker.training.reporting.telemetry import TrainingSummary

SECTIONS = ["Base model", "Data", "Recipe", "Curves", "Evaluation", "Reproduce", "Limits"]
EVIL = "Evil | <script>alert(1)</script> [x](http://e) `code` **bold** _it_ # \n---\nlicense: mit"
PACKAGES = {"torch": "2.13.0"}
METRICS = [
    {"step": 1, "train_loss": 4.0},
    {"step": 2, "train_loss": 3.0, "valid_loss": 3.5, "valid_mean_token_accuracy": 0.25},
    {"step": 3, "train_loss": 2.0, "valid_loss": 2.5, "valid_mean_token_accuracy": 0.5},
    {"step": 4, "train_loss": 1.0, "valid_loss": 2.75, "valid_mean_token_accuracy": 0.375},
]


def html(card: str) -> str:
    """The card without its front matter as a reader's program shows it."""
    return MarkdownIt("commonmark").enable("table").render(card.split("---\n", 2)[2])


@pytest.fixture
def facts(finished, tiny) -> FinishedRun:
    """A run with validation, truncation and skipped rows."""
    raw = (finished.run_dir / "adapter" / "adapter_manifest.json").read_bytes()
    return FinishedRun(
        run_id="01K9ZZZZZZZZZZZZZZZZZZZZZZ",
        plan=finished.run.plan,
        config=parse_model_config(json.loads((tiny.base / "config.json").read_bytes())),
        manifest=AdapterManifest.model_validate_json(raw),
        progress=Progress(4, 1200, METRICS),
        summary=TrainingSummary(1.5, 3, 30, 250.0),
        training=PreparationReport(
            rows=6, tokens=1000, supervised_tokens=250, truncated_rows=2, truncated_tokens=17, skipped={"short_seq": 3}
        ),
        training_rows=6,
        validation=PreparationReport(rows=2),
        validation_rows=2,
        skips={"short_seq": 3, "curriculum": 0},
        rate_at=lambda step: 0.1 / step,
        last_epoch_steps=2,
        planned_steps=4,
        memory={},
        device="cuda",
        device_name="NVIDIA H200",
        engine={"layout": "packed"},
    )


def with_provenance(facts, **fields):
    contract = facts.plan.contract.model_copy(update={"provenance": ProvenanceSection(**fields)})
    return replace(facts, plan=facts.plan.model_copy(update={"contract": contract}))


# -- a real run -------------------------------------------------------------------------------------------------------


def test_a_real_run_leaves_its_card_and_its_picture(finished):
    card = (finished.run_dir / CARD_NAME).read_text()
    summary = read_json(finished.run_dir / "run_summary.json")
    assert summary["adapter_id"] in card
    assert finished.run.plan.digest in card
    assert f"{summary['last_val_loss']:.4f}" in card
    (picture,) = re.findall(r"!\[[^\]]+\]\(([^)]+)\)", card)
    assert ET.fromstring((finished.run_dir / picture).read_text()).tag.endswith("svg")
    assert str(finished.run_dir) not in card


# -- sections ---------------------------------------------------------------------------------------------------------


def test_sections_in_their_order(facts):
    shown = html(model_card(facts, PACKAGES))
    assert re.findall(r"<h2>(.*?)</h2>", shown) == SECTIONS
    assert re.findall(r"<h1>(.*?)</h1>", shown) == ["tiny"]


def test_data_and_recipe_are_the_measured_ones(facts):
    shown = html(model_card(facts, PACKAGES))
    for cells in (
        "<td>of these supervised</td>\n<td>250 (25.0 %)</td>",
        "<td>rows cut at the beginning</td>\n<td>2 (17 tokens)</td>",
        "<td>rows left out</td>\n<td>3 short seq</td>",
        f"<td>its SHA-256</td>\n<td>{facts.plan.train.sha256}</td>",
        "<td>rows validated on</td>\n<td>2 (a file of its own)</td>",
        "<td>exec.learning_rate</td>\n<td>0.01</td>",
        "<td>adapter.rank</td>\n<td>4</td>",
        "<td>engine.layout</td>\n<td>packed</td>",
        "<td>torch</td>\n<td>2.13.0</td>",
        "Trained on NVIDIA H200.",
    ):
        assert cells in shown


def test_the_recipe_is_that_of_the_run(facts):
    exec_ = facts.plan.contract.exec.model_copy(update={"warmup_steps": 50, "epochs": 10})
    plain = with_pair(facts.plan.contract, AdapterMethod.LORA, BaseQuant.NONE).model_copy(update={"exec": exec_})
    made = replace(facts, plan=facts.plan.model_copy(update={"contract": plain}), planned_steps=40)
    manifest = facts.manifest.model_copy(update={"adapter_method": AdapterMethod.LORA})
    card = model_card(replace(made, manifest=manifest), PACKAGES)
    assert "| exec.warmup\\_steps | 4 |" in card
    assert "| exec.epochs | 10 planned; 4 of 40 steps were made |" in card
    assert "double\\_quant" not in card
    assert yaml.safe_load(card.split("---\n", 2)[1])["tags"] == ["lora", "mens"]


def test_evaluation_shows_first_best_and_last(facts):
    card = model_card(facts, PACKAGES)
    assert "| first | 2 | 3.5000 | 25.0 % |\n| best | 3 | 2.5000 | 50.0 % |\n| last | 4 | 2.7500 | 37.5 % |" in card
    nothing = model_card(replace(facts, progress=Progress(4, 1200, METRICS[:1])), PACKAGES)
    assert "nothing was evaluated" in nothing


def test_attribution_is_a_visible_notice(facts):
    assert "Attribution" not in model_card(facts, PACKAGES)
    owed = with_provenance(facts, upstream_model_id="org/base", license_class="cc-by-4.0", attribution_required=True)
    shown = html(model_card(owed, PACKAGES))
    quote = re.search(r"<blockquote>(.*?)</blockquote>", shown, re.DOTALL)[1]
    assert "<strong>Attribution required.</strong>" in quote
    assert "must name org/base under its licence (cc-by-4.0)." in quote


def test_models_that_wrote_rows_are_named_with_their_terms(facts):
    assert "Answers of models" not in model_card(facts, PACKAGES)
    shown = html(
        model_card(with_provenance(facts, answer_models=("large-2 (https://x.example): permits_training",)), PACKAGES)
    )
    assert "large-2 (https://x.example): permits_training" in shown.split("Answers of models.")[1]


def test_interruptions_are_reported_with_what_they_mean(facts):
    assert "The run was not interrupted." in model_card(facts, PACKAGES)
    for reasons, meaning in (([], "its bytes equal those of"), (["threads"], "its state was restored completely")):
        progress = Progress(4, 1200, METRICS, resumed_from=[2, 3], inexact_reasons=reasons)
        card = model_card(replace(facts, progress=progress), PACKAGES)
        assert f"at step 2, 3: {meaning}" in card


def test_a_run_that_is_not_bit_exact_says_why_not_and_nothing_else(facts):
    progress = Progress(4, 1200, METRICS, resumed_from=[2], inexact_reasons=["rows", "threads"])
    card = model_card(replace(facts, progress=progress), PACKAGES)
    assert "may round differently: the run was resumed in a different environment: rows; " in card
    assert "accelerator" not in card


def test_notes_of_the_plan_are_listed(facts):
    noted = replace(facts, plan=facts.plan.model_copy(update={"notes": ("Rows are long.", "- Odd.")}))
    shown = html(model_card(noted, PACKAGES))
    assert "<li>Rows are long.</li>\n<li>- Odd.</li>" in shown


# -- front matter -----------------------------------------------------------------------------------------------------


def read_front_matter(facts):
    _, matter, rest = model_card(facts, PACKAGES).split("---\n", 2)
    assert rest.startswith("\n\n# ")
    return yaml.safe_load(matter)


def test_front_matter_as_the_hub_reads_it(facts):
    assert read_front_matter(with_provenance(facts)) == {
        "base_model": facts.plan.base.name,
        "base_model_relation": "adapter",
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["lora", "qlora", "mens"],
    }
    known = read_front_matter(with_provenance(facts, upstream_model_id="Qwen/Qwen3-8B", license_class="Apache-2.0"))
    assert (known["base_model"], known["license"]) == ("Qwen/Qwen3-8B", "apache-2.0")
    other = read_front_matter(with_provenance(facts, license_class="Our own"))
    assert (other["license"], other["license_name"]) == ("other", "Our own")


def test_any_lineage_keeps_the_front_matter_whole(facts):
    @given(st.text(max_size=50), st.text(max_size=50))
    def whole(upstream, license_):
        read = read_front_matter(with_provenance(facts, upstream_model_id=upstream, license_class=license_))
        assert read["library_name"] == "peft"
        assert set(read) <= {
            "base_model",
            "base_model_relation",
            "library_name",
            "pipeline_tag",
            "tags",
            "license",
            "license_name",
        }

    whole()


# -- escaping ---------------------------------------------------------------------------------------------------------


def test_what_people_name_is_not_markup(facts):
    evil = with_provenance(
        facts, base_family=EVIL, upstream_model_id=EVIL, license_class=EVIL, attribution_required=True
    )
    shown = html(model_card(evil, PACKAGES))
    for markup in ("<script", "<a ", "<em>", "<code>code", "<strong>bold"):
        assert markup not in shown
    assert re.findall(r"<h2>(.*?)</h2>", shown) == SECTIONS
    assert read_front_matter(evil)["license"] == "other"


# -- picture ----------------------------------------------------------------------------------------------------------


def test_the_picture_shows_losses_and_rates(facts):
    text = "".join(ET.fromstring(draw_curves(facts)).itertext())
    for name in ("training, smoothed", "validation", "Loss (nats per token)", "Learning rate"):
        assert name in text


def test_a_run_without_losses_has_a_picture_too(facts):
    assert "nothing measured" in draw_curves(replace(facts, progress=Progress(4, 1200, [])))
    assert CURVES_NAME in model_card(facts, PACKAGES)
