"""``external_serving_handoff_v1.json``: the original's closed schema, and the instructions for each runtime."""

from __future__ import annotations

import json
import os
from pathlib import Path

import jsonschema
import pytest
from pydantic import ValidationError

from cli.export.download import Downloaded
from cli.export.formats import Format, write
from cli.export.handoff import HANDOFF_NAME, Backend, Handoff, handoff_for

GOLDEN = Path(__file__).parent / "golden" / "external_serving_handoff_v1.schema.json"


def test_the_schema_is_the_golden_one() -> None:
    schema = json.dumps(Handoff.model_json_schema(by_alias=True), indent=2, sort_keys=True) + "\n"
    if os.environ.get("MENS_UPDATE_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(schema)
    assert schema == GOLDEN.read_text()


@pytest.mark.parametrize("backend", list(Backend))
def test_every_handoff_is_valid_and_leads_to_its_files(stored: Downloaded, tmp_path: Path, backend: Backend) -> None:
    write(stored, tmp_path, Format.PEFT, backend)
    (stored.folder / HANDOFF_NAME).unlink()  # the fixture is shared
    content = json.loads((tmp_path / HANDOFF_NAME).read_bytes())
    jsonschema.validate(content, json.loads(GOLDEN.read_text()))
    assert (content["schema"], content["schema_version"]) == ("vox_external_serving_handoff_v1", 1)
    assert (content["backend_family"], content["base_model"]) == (backend.value, "tiny")
    assert (tmp_path / content["artifact_dir"]).is_dir()
    if backend is Backend.OPENAI_COMPATIBLE:
        assert (content["adapter_path"], content["openai_base_url"]) == (None, "http://127.0.0.1:8000/v1")
        assert stored.manifest.adapter_id in content["notes"]
    else:
        assert (tmp_path / content["adapter_path"]).is_file()
        assert content["openai_base_url"] is None


def test_the_schema_is_closed(stored: Downloaded) -> None:
    content = handoff_for(Backend.VLLM, stored.manifest, "").model_dump(by_alias=True)
    for wrong in (content | {"extra": 1}, content | {"base_model": ""}, content | {"schema": "v2"}):
        with pytest.raises(ValidationError):
            Handoff.model_validate(wrong)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, json.loads(GOLDEN.read_text()))


@pytest.mark.parametrize(("rank", "taken"), [(3, "8"), (16, "16"), (20, "32"), (200, "256")])
def test_vllm_gets_a_rank_that_it_accepts(stored: Downloaded, rank: int, taken: str) -> None:
    notes = handoff_for(Backend.VLLM, stored.manifest.model_copy(update={"rank": rank}), "").notes
    assert notes is not None
    assert f"--max-lora-rank {taken} " in notes
