"""Contract files: only the sections, or as the console writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.contract_sections import Sections, add_answer_models, read_request_options, read_sections
from shared.contract.flat_keys import parse_contract
from shared.errors import ContractRejected

SECTIONS = {"exec": {"epochs": 2}}


def test_contract_in_a_request_is_read_with_what_stands_next_to_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"name": "mine", "preset": "small", "domain": None, "contract": SECTIONS}))
    assert (read_sections(path), read_request_options(path)) == (SECTIONS, {"name": "mine", "preset": "small"})


def test_sections_alone_have_nothing_next_to_them(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(SECTIONS))
    assert (read_sections(path), read_request_options(path), read_request_options(None)) == (SECTIONS, {}, {})


def test_name_next_to_bare_sections_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"name": "mine"} | SECTIONS))
    with pytest.raises(ContractRejected, match="does not contain a JSON object of sections"):
        read_sections(path)


def write_rows(folder: Path, *models: str) -> Path:
    """A file of rows whose provenance names models of other servers."""
    notes = [
        {"model": model, "endpoint": "https://models.example.com", "terms": "permits_training"} for model in models
    ]
    lines = [{"id": "i", "source": "s", "locator": {}, "generator": {"a": note}} for note in notes]
    (folder / "rows.sources.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder / "rows.jsonl"


def answer_models(sections: Sections, rows: Path) -> tuple[str, ...]:
    """Add models to sections, and parse them."""
    add_answer_models(sections, [rows])
    parsed = parse_contract({"data": {"train_file": "f"}} | sections).provenance.answer_models
    assert parsed
    return parsed


def test_models_of_the_rows_are_added_to_those_that_are_stated(tmp_path: Path) -> None:
    rows = write_rows(tmp_path, "large-2")
    sections: Sections = {"provenance": {"answer_models": ["by hand"], "license_class": "apache"}}
    expected = ("by hand", "large-2 (https://models.example.com): permits_training")
    assert answer_models(sections, rows) == answer_models(sections, rows) == expected
    assert sections["provenance"]["license_class"] == "apache"


@pytest.mark.parametrize("stated", [0, 10, 62, 63])
def test_contract_takes_any_models_of_rows_and_has_room_for_those_of_a_parent(tmp_path: Path, stated: int) -> None:
    rows = write_rows(tmp_path, "m" * 1_000, *(f"model-{number}" for number in range(100)))
    sections: Sections = {"provenance": {"answer_models": [f"own {number}" for number in range(stated)]}}
    models = answer_models(sections, rows)
    assert len(models) == max(63, stated + 1)
    assert {f"own {number}" for number in range(stated)} <= {*models}
    kept = max(62 - stated, 0)
    assert f"{101 - kept} further models that the provenance of the rows names" in models


def test_long_model_keeps_its_terms(tmp_path: Path) -> None:
    (model,) = answer_models({}, write_rows(tmp_path, "m" * 1_000))
    assert (model[:3], len(model)) == ("mmm", 400)
    assert model.endswith("m (https://models.example.com): permits_training")
