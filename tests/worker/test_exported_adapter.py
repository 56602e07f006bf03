"""An exported adapter is the trained one: peft loads it by itself, with the same logits to the bit."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from cli.export.download import ADAPTER_FILES, README_NAME, Downloaded
from cli.export.formats import Format, write
from shared.artifacts.manifests import MANIFEST_NAME, AdapterManifest
from worker.run_folder import ADAPTER_FOLDER
from worker.score import load


@pytest.mark.parametrize("layout", [Format.PEFT, Format.HF])
@torch.no_grad()
def test_peft_loads_the_folder_with_equal_logits(finished, tiny, tmp_path, layout):
    trained = tmp_path / "trained"
    trained.mkdir()
    for name in ADAPTER_FILES:
        (trained / name).write_bytes((finished.run_dir / ADAPTER_FOLDER / name).read_bytes())
    (trained / README_NAME).write_text("# tiny\n")
    manifest = AdapterManifest.model_validate_json((trained / MANIFEST_NAME).read_bytes())
    target = tmp_path / "out"
    target.mkdir()
    write(Downloaded(trained, manifest, ""), target, layout, None)
    ids = torch.arange(5, 45)[None]
    base = AutoModelForCausalLM.from_pretrained(tiny.base, dtype=torch.float32)
    before = base(input_ids=ids).logits
    exported = PeftModel.from_pretrained(base, target).eval()
    expected = load(tiny.base, finished.run_dir / ADAPTER_FOLDER, torch.float32, torch.device("cpu")).eval()
    logits = exported(input_ids=ids).logits
    assert torch.equal(logits, expected(input_ids=ids).logits)
    assert not torch.allclose(logits, before, atol=1e-2)
