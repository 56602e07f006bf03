"""An exported adapter is the trained one: peft alone loads it, with exactly the same logits."""

from __future__ import annotations

import shutil

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from cli.export.download import ADAPTER_FILES, README_NAME, Downloaded
from cli.export.formats import Format, write
from shared.artifacts.manifests import MANIFEST_NAME, AdapterManifest, verify_adapter
from shared.tokenization.tokenizer import Tokenizer
from tests.support.template_families import FAMILIES, make_base
from worker.run_folder import ADAPTER_FOLDER
from worker.score import load


@pytest.fixture
def trained(finished, tmp_path) -> Downloaded:
    """The adapter of a finished run, as it is downloaded."""
    folder = tmp_path / "trained"
    folder.mkdir()
    for name in ADAPTER_FILES:
        (folder / name).write_bytes((finished.run_dir / ADAPTER_FOLDER / name).read_bytes())
    (folder / README_NAME).write_text("# tiny\n")
    manifest = AdapterManifest.model_validate_json((folder / MANIFEST_NAME).read_bytes())
    return Downloaded(folder, manifest, "")


@pytest.mark.parametrize("layout", [Format.PEFT, Format.HF])
@torch.no_grad()
def test_peft_loads_the_folder_with_equal_logits(finished, trained, tiny, tmp_path, layout):
    target = tmp_path / "out"
    target.mkdir()
    write(trained, target, layout, None)
    ids = torch.arange(5, 45)[None]
    base = AutoModelForCausalLM.from_pretrained(tiny.base, dtype=torch.float32)
    before = base(input_ids=ids).logits
    exported = PeftModel.from_pretrained(base, target).eval()
    expected = load(tiny.base, finished.run_dir / ADAPTER_FOLDER, torch.float32, torch.device("cpu")).eval()
    logits = exported(input_ids=ids).logits
    assert torch.equal(logits, expected(input_ids=ids).logits)
    assert not torch.allclose(logits, before, atol=1e-2)


@pytest.fixture
def mlflow_folder(trained, tmp_path):
    """As `mens adapter export --format mlflow` writes it."""
    target = tmp_path / "mlflow"
    target.mkdir()
    assert "mlflow.pyfunc.load_model" in write(trained, target, Format.MLFLOW, None)
    return target


@pytest.mark.filterwarnings("ignore::UserWarning:mlflow")
def test_mlflow_answers_as_the_trained_model(mlflow_folder, trained, finished, tiny):
    """MLflow's own loader, from the folder alone and the base: the same greedy answers as transformers with peft."""
    import mlflow.pyfunc
    import pandas as pd

    stored = mlflow.models.Model.load(str(mlflow_folder))
    assert stored.metadata["mens_adapter"] == trained.manifest.adapter_id
    assert any(line.startswith("peft==") for line in (mlflow_folder / "requirements.txt").read_text().splitlines())
    chats = [[{"role": "user", "content": text}] for text in ("Name a colour.", "the red fox")]
    loaded = mlflow.pyfunc.load_model(str(mlflow_folder), model_config={"base": str(tiny.base)})
    answers = loaded.predict(pd.DataFrame({"messages": chats}), params={"max_new_tokens": 12})
    tokenizer = AutoTokenizer.from_pretrained(tiny.base)
    model = load(tiny.base, finished.run_dir / ADAPTER_FOLDER, torch.float32, torch.device("cpu")).eval()
    for chat, answer in zip(chats, answers, strict=True):
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        written = model.generate(**ids, do_sample=False, max_new_tokens=12)[0, ids["input_ids"].shape[1] :]
        assert answer == tokenizer.decode(written, skip_special_tokens=True)
    assert any(answers)
    verify_adapter(mlflow_folder / "artifacts" / "adapter", trained.manifest)


@pytest.mark.filterwarnings("ignore::UserWarning:mlflow")
@pytest.mark.parametrize("family", FAMILIES)
def test_mlflow_ends_answers_where_training_does(family, tmp_path):
    """The model's code stands alone, so it finds the template's end token by itself."""
    from cli.export.mlflow_chat import _end_ids

    folder = make_base(tmp_path, FAMILIES[family])
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    ours = Tokenizer.load(folder)
    configured = sorted(ours.configured_ends) or None
    assert _end_ids(AutoTokenizer.from_pretrained(folder), configured) == sorted(ours.end_ids)


@pytest.mark.filterwarnings("ignore::UserWarning:mlflow")
def test_mlflow_refuses_a_base_with_another_template(mlflow_folder, tiny, tmp_path):
    import mlflow.pyfunc

    other = tmp_path / "other"
    shutil.copytree(tiny.base, other)
    (other / "chat_template.jinja").write_text("{{ messages[0].content }}")
    with pytest.raises(ValueError, match="chat template differs"):
        mlflow.pyfunc.load_model(str(mlflow_folder), model_config={"base": str(other)})
