"""Bases that `mens base add` refuses, each with its code; `mens plan` finds the same faults in a base that is already
in a catalogue.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer
from typer.testing import CliRunner

from api.migrate import migrate
from cli.main import app
from cli.standalone import base_facts
from shared.base_models.catalog import (
    BaseModelEntry,
    Catalog,
    LocalSource,
    digest_model_folder,
    load_catalog,
    save_catalog,
)
from shared.database.connection import Database
from shared.database.jobs import Jobs
from shared.database.leases import Leases
from shared.errors import ArtifactInvalid, Code
from shared.settings import Settings
from tests.support.builders import claimed
from tests.support.tiny_base import write_base

Harm = Callable[[Path], object]
WEIGHTS = "model.safetensors"


def change_config(**values: object) -> Harm:
    return lambda base: (base / "config.json").write_text(
        json.dumps(json.loads((base / "config.json").read_text()) | values)
    )


def change_weights(change: Callable[[dict[str, np.ndarray]], object]) -> Harm:
    def harm(base: Path) -> None:
        tensors = load_file(base / WEIGHTS)
        change(tensors)
        save_file(tensors, base / WEIGHTS)

    return harm


def cut(base: Path) -> None:
    (base / WEIGHTS).write_bytes((base / WEIGHTS).read_bytes()[:-100])


def float8(base: Path) -> None:
    """As a published float8 checkpoint: same names and shapes, a byte a value."""
    header, position = {}, 0
    for name, tensor in load_file(base / WEIGHTS).items():
        header[name] = {"dtype": "F8_E4M3", "shape": tensor.shape, "data_offsets": [position, position + tensor.size]}
        position += tensor.size
    raw = json.dumps(header).encode()
    (base / WEIGHTS).write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(position))


def add_token(base: Path) -> None:
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    tokenizer.add_special_tokens(["<tool>"])
    tokenizer.save(str(base / "tokenizer.json"))


KEY = "model.layers.1.mlp.up_proj.weight"
HARMS: dict[str, tuple[Harm, Code, str]] = {
    "cut weights": (cut, Code.SAFETENSORS_INVALID, "model.safetensors"),
    "no safetensors": (lambda base: (base / WEIGHTS).write_bytes(b"PK\x03\x04"), Code.SAFETENSORS_INVALID, "header"),
    "a weight less": (change_weights(lambda tensors: tensors.pop(KEY)), Code.BLOCK_INVENTORY_INCOMPLETE, KEY),
    "another shape": (
        change_weights(lambda tensors: tensors.update({KEY: np.zeros((3, 3), np.float32)})),
        Code.BLOCK_INVENTORY_INCOMPLETE,
        "(3, 3)",
    ),
    "another embedding": (change_config(vocab_size=9), Code.EMBEDDING_SHAPE_MISMATCH, "embed_tokens"),
    "another architecture": (change_config(model_type="gemma2"), Code.MODEL_FAMILY_UNSUPPORTED, "'gemma2'"),
    "float8 in the config": (change_config(dtype="float8_e4m3fn"), Code.MODEL_CONFIG_INVALID, "float8_e4m3fn"),
    "float8 in the weights": (float8, Code.BLOCK_INVENTORY_INCOMPLETE, "F8_E4M3"),
    "GPTQ": (change_config(quantization_config={"quant_method": "gptq", "bits": 4}), Code.MODEL_CONFIG_INVALID, "gptq"),
    "bitsandbytes": (
        change_config(quantization_config={"quant_method": "bitsandbytes"}),
        Code.MODEL_CONFIG_INVALID,
        "full-precision weights",
    ),
    "no template": (
        lambda base: (base / "chat_template.jinja").unlink(),
        Code.TEMPLATE_UNSUPPORTED,
        "no chat template",
    ),
    "a token more": (add_token, Code.EMBEDDING_ROW_MISSING, "'<tool>' (id 258)"),
}


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(base_facts, "run_worker_program", lambda *_: None)
    return Settings()


@pytest.mark.parametrize(("head_dim", "is_noted"), [(32, False), (24, True)])
def test_base_that_only_a_gpu_serves_is_accepted_with_a_note(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head_dim: int, is_noted: bool
) -> None:
    monkeypatch.setattr(base_facts, "preflight_model", lambda *_, **__: None)
    base = write_base(tmp_path / "base")
    change_config(head_dim=head_dim)(base)
    notes: list[str] = []
    base_facts.check_base(base, notes.append)
    assert [f"head_dim is {head_dim}" in note for note in notes] == [True] * is_noted


@pytest.mark.parametrize("harm", HARMS)
def test_base_that_cannot_work_is_refused(settings: Settings, tmp_path: Path, harm: str) -> None:
    change, code, words = HARMS[harm]
    base = write_base(tmp_path / "base")
    change(base)
    refused = CliRunner().invoke(app, ["base", "add", "mine", str(base)])
    assert refused.exit_code == 1, refused.output
    assert f"error: {code}: " in refused.stderr
    assert words in refused.stderr
    assert load_catalog(settings.catalog_path).bases == []

    # One that a catalogue has already, of an earlier release.
    entry = BaseModelEntry(name="mine", source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    save_catalog(settings.catalog_path, Catalog(bases=[entry]))
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"{i}?", "response": f"<tool> {i}"}) + "\n" for i in range(12)))
    planned = CliRunner().invoke(app, ["plan", str(rows), "--model", "mine"])
    assert (planned.exit_code, str(code) in planned.output) == (1, True), planned.output


def test_tokenizers_are_compared_by_a_program_of_the_worker(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def run(*arguments: str) -> None:
        calls.append(arguments)
        raise ArtifactInvalid(Code.TOKENIZER_MISMATCH, "Other tokens.", param="tokenizer.json")

    monkeypatch.setattr(base_facts, "run_worker_program", run)
    base = write_base(tmp_path / "base")
    refused = CliRunner().invoke(app, ["base", "add", "mine", str(base)])
    assert (refused.exit_code, "TOKENIZER_MISMATCH" in refused.stderr) == (1, True)
    assert calls == [("worker.bases.tokenizer_check", str(base))]
    assert load_catalog(settings.catalog_path).bases == []
    # Where the command line is installed alone.
    monkeypatch.setattr(base_facts.importlib.util, "find_spec", lambda _: None)
    added = CliRunner().invoke(app, ["base", "add", "mine", str(base)])
    assert (added.exit_code, "transformers is not installed" in added.stderr) == (0, True), added.output


# -- the measured rate: as the API uses it for `mens train` ---------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose catalogue has the base `tiny`, without a database."""
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    base = write_base(tmp_path / "folder")
    entry = BaseModelEntry(name="tiny", source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    save_catalog(tmp_path / "home" / "catalog.json", Catalog(bases=[entry]))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "response": "b"}\n' * 40)
    return tmp_path / "home"


def time_of(home: Path, *options: str, model: str = "tiny") -> dict[str, Any]:
    """The time that a plan of the base estimates."""
    rows = str(home.parent / "rows.jsonl")
    shown = CliRunner().invoke(app, ["plan", rows, "--model", model, "--json", *options])
    assert shown.exit_code == 0, shown.output
    time: dict[str, Any] = json.loads(shown.stdout)["estimate"]["time"]
    return time


def measure(home: Path, rate: float) -> str:
    """Write a job of the base that ended at this rate into the home's database; returns its id."""
    url = Settings(home=home).database_url
    migrate(url)
    database = Database(url)
    lease = claimed(Jobs(database), leases := Leases(database, 60))
    leases.finish(lease, {"tokens_per_second": rate, "trained_tokens": 1})
    database.close()
    return lease.job.id


def test_a_plan_uses_the_rate_of_the_homes_last_job(home: Path) -> None:
    assert time_of(home)["basis"] == "flops"
    job = measure(home, 1000.0)
    measured = time_of(home)
    assert (measured["basis"], job in measured["reason"]) == ("measured", True)
    assert 0 <= measured["other_seconds"] < 60
    assert time_of(home, model=str(home.parent / "folder")) == measured


def test_a_rate_is_not_that_of_another_machine_or_base(home: Path) -> None:
    measure(home, 1000.0)
    assert time_of(home, "--device", "cpu")["basis"] == "flops"
    other = write_base(home.parent / "tiny")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config, indent=1))
    assert time_of(home, model=str(other))["basis"] == "flops"


def test_a_database_that_cannot_be_read_is_a_note(home: Path) -> None:
    (home / "mens.db").write_bytes(b"")
    shown = CliRunner().invoke(app, ["plan", str(home.parent / "rows.jsonl"), "--model", "tiny"])
    assert shown.exit_code == 0, shown.output
    assert "could not check whether a job of tiny was measured" in shown.output
