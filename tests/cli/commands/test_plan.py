"""``mens plan``: offline, as a table and as JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.main import app
from shared.artifacts.manifests import MANIFEST_NAME
from shared.base_models.catalog import BaseModelEntry, Catalog, LocalSource, digest_model_folder, save_catalog
from shared.contract.auto_hyperparameters import auto_exec
from tests.support.parents import manifest_of
from tests.support.preference_rows import PAIRS
from tests.support.pretended_gpu import MACHINES, pretend
from tests.support.tiny_base import write_base

runner = CliRunner()


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MENS_HOME", str(tmp_path / "home"))
    return write_base(tmp_path / "tiny")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "a", "response": "b"}\n' * 40)
    return path


def test_plan_as_table(base: Path, rows: Path) -> None:
    result = runner.invoke(app, ["plan", str(rows), "--model", str(base), "--preset", "tiny", "--vram-gb", "16"])
    assert result.exit_code == 0, result.output
    for expected in ("30 for training, 10 held out", "rank 4", "fits", "adapter.rank (preset)", "note:"):
        assert expected in " ".join(result.output.split())


def test_end_token_that_the_config_files_lack_is_a_note(base: Path, rows: Path) -> None:
    plan = ["plan", str(rows), "--model", str(base)]
    note = "The base's chat template ends turns with <|im_end|>"
    assert note not in " ".join(runner.invoke(app, plan).output.split())
    (base / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_start|>"}))
    assert note in " ".join(runner.invoke(app, plan).output.split())
    checked = runner.invoke(app, ["data", "check", str(rows), "--model", str(base)])
    assert " ".join(checked.output.split()).count(f"note: {note}") == 1


def test_lenient_skips_bad_lines(base: Path, rows: Path) -> None:
    rows.write_text(rows.read_text() + "oops\n")
    plan = ["plan", str(rows), "--model", str(base), "--json"]
    assert "DATASET_LINE_INVALID" in runner.invoke(app, plan).output
    found = json.loads(runner.invoke(app, [*plan, "--lenient"]).output)["plan"]
    assert (found["train"]["rows"], found["contract"]["data"]["mode"]) == (40, "lenient")


def test_plan_as_json(base: Path, rows: Path) -> None:
    result = runner.invoke(app, ["plan", str(rows), "--model", str(base), "--json"])
    assert json.loads(result.output)["plan"]["train"]["rows"] == 40


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--max-lora-rank", "8"], "NOT_SERVABLE_RANK"),
        (["--vram-gb", "0.5"], "MEMORY_DOES_NOT_FIT"),
        (["--preset", "4081"], "UNKNOWN_PRESET"),
        (["--domain", "rust"], "UNKNOWN_DOMAIN"),
        (["--device", "toaster"], "CONTRACT_INVALID"),
        (["--device", "metal"], "CONTRACT_UNSUPPORTED"),
        (["--backend", "lora"], "BURN_HF_GPT2_ONLY"),
        (["--backend", "lora", "--quant", "nf4"], "KERNEL_MISMATCH"),
    ],
)
def test_job_that_cannot_run_exits_with_its_code(base: Path, rows: Path, arguments: list[str], code: str) -> None:
    result = runner.invoke(app, ["plan", str(rows), "--model", str(base), *arguments])
    assert (result.exit_code, code in result.output) == (1, True)


def test_model_is_by_default_the_contract_files(base: Path, rows: Path, tmp_path: Path) -> None:
    (tmp_path / "contract.json").write_text(json.dumps({"model": {"name": str(base)}}))
    result = runner.invoke(app, ["plan", str(rows), "--contract", str(tmp_path / "contract.json"), "--json"])
    assert json.loads(result.output)["plan"]["base"]["name"] == "tiny"


def test_plan_without_a_base_says_how_to_get_one(rows: Path, base: Path) -> None:
    shown = runner.invoke(app, ["plan", str(rows)])
    assert shown.exit_code == 1
    assert "MODEL_NOT_FOUND: No base model was named, and the catalogue has none." in shown.output
    assert "mens base add" in shown.output and "--model FOLDER" in shown.output


def test_only_base_of_the_catalogue_is_taken_where_none_is_named(rows: Path, base: Path, tmp_path: Path) -> None:
    entry = BaseModelEntry(name="mine", source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    save_catalog(tmp_path / "home" / "catalog.json", Catalog(bases=[entry]))
    shown = runner.invoke(app, ["plan", str(rows), "--json"])
    assert json.loads(shown.output)["plan"]["base"]["name"] == "mine"
    save_catalog(tmp_path / "home" / "catalog.json", Catalog(bases=[entry, entry.model_copy(update={"name": "other"})]))
    assert "the catalogue has several: mine, other." in runner.invoke(app, ["plan", str(rows)]).output


def test_every_field_is_a_flag_as_in_train(base: Path, rows: Path) -> None:
    plan = ["plan", str(rows), "--model", str(base), "--json"]
    flags = ["--alpha", "64", "--target-modules", "q_proj", "--min-rating", "2"]
    contract = json.loads(runner.invoke(app, [*plan, *flags]).output)["plan"]["contract"]
    assert (contract["adapter"]["alpha"], contract["adapter"]["target_modules"]) == (64, ["q_proj"])
    assert contract["data"]["min_rating"] == 2
    for flag, code in (("--min-rating=6", "CONTRACT_INVALID"), ("--target-modules=foo", "TARGET_MODULES_UNKNOWN")):
        refused = runner.invoke(app, [*plan, flag])
        assert (refused.exit_code, json.loads(refused.output)["error"]["code"]) == (1, code)


def test_unknown_base_is_refused(rows: Path, base: Path) -> None:
    assert "MODEL_NOT_FOUND" in runner.invoke(app, ["plan", str(rows), "--model", "nobody"]).output


def test_bad_line_is_named(base: Path, rows: Path) -> None:
    rows.write_text('{"prompt": "a", "response": "b"}\noops\n')
    assert "line 2" in runner.invoke(app, ["plan", str(rows), "--model", str(base)]).output


def test_plan_uses_the_auto_rules_of_train(base: Path, rows: Path) -> None:
    result = runner.invoke(app, ["plan", str(rows), "--model", str(base), "--rank", "8", "--json"])
    contract = json.loads(result.output)["plan"]["contract"]
    expected = auto_exec(40, None)
    assert {key: contract["exec"][key] for key in expected} == expected
    assert contract["adapter"]["rank"] == 8


def test_auto_rules_fill_what_a_contract_file_leaves_open(base: Path, rows: Path, tmp_path: Path) -> None:
    contract = tmp_path / "contract.json"
    contract.write_text('{"trajectory": {"enabled": true}, "exec": {"seed": 7, "epochs": 2}}')
    result = runner.invoke(app, ["plan", str(rows), "--model", str(base), "--contract", str(contract), "--json"])
    planned = json.loads(result.output)["plan"]["contract"]
    expected = auto_exec(40, None) | {"seed": 7, "epochs": 2}
    assert {name: planned["exec"][name] for name in expected} == expected
    assert planned["trajectory"]["enabled"] is True


def test_a_contract_file_may_spell_fields_otherwise(base: Path, rows: Path, tmp_path: Path) -> None:
    contract = tmp_path / "contract.json"
    contract.write_text('{"model": {"name": "another"}, "adapter": {"r": 8, "lora_alpha": 64}}')
    plan = ["plan", str(rows), "--model", str(base), "--contract", str(contract), "--rank", "4", "--json"]
    planned = json.loads(runner.invoke(app, plan).output)["plan"]["contract"]
    assert (planned["adapter"]["rank"], planned["adapter"]["alpha"]) == (4, 64)
    assert planned["model"]["hf_repo"] == base.name


@pytest.mark.parametrize(("field", "option"), [("validation_file", "--validation"), ("replay_file", "--replay")])
def test_further_files_of_a_contract_file_are_planned_or_required(
    base: Path, rows: Path, tmp_path: Path, field: str, option: str
) -> None:
    further, contract = tmp_path / "further.jsonl", tmp_path / "contract.json"
    further.write_text('{"prompt": "c", "response": "d"}\n' * 3)
    contract.write_text(json.dumps({"data": {field: str(further)}}))
    plan = ["plan", str(rows), "--model", str(base), "--json"]
    named, given = (
        runner.invoke(app, [*plan, "--contract", str(contract)]),
        runner.invoke(app, [*plan, option, str(further)]),
    )
    planned = json.loads(named.output)["plan"]
    assert planned[field.removesuffix("_file")]["rows"] == 3
    assert planned == json.loads(given.output)["plan"]
    further.unlink()
    error = json.loads(runner.invoke(app, [*plan, "--contract", str(contract)]).output)["error"]
    assert (error["code"], error["param"], option in error["remedy"]) == ("CONTRACT_INVALID", f"data.{field}", True)


@pytest.mark.parametrize("text", ["[1]", "{exec: 1}", '{"exec": 5}', '{"exec": {"learning_rate": NaN}}'])
def test_invalid_contract_file_is_named(base: Path, rows: Path, tmp_path: Path, text: str) -> None:
    contract = tmp_path / "contract.json"
    contract.write_text(text)
    result = runner.invoke(app, ["plan", str(rows), "--model", str(base), "--contract", str(contract)])
    assert result.exit_code == 1
    assert "contract.json" in " ".join(result.output.split())
    assert not isinstance(result.exception, AttributeError | ValueError)
    as_json = runner.invoke(app, ["plan", str(rows), "--model", str(base), "--contract", str(contract), "--json"])
    error = json.loads(as_json.output)["error"]
    assert (error["code"], error["param"]) == ("CONTRACT_INVALID", "--contract")


def test_help_shows_the_defaults() -> None:
    assert "Default: auto." in " ".join(runner.invoke(app, ["plan", "--help"]).output.replace("│", " ").split())


def test_a_plan_takes_the_contract_that_it_printed(base: Path, rows: Path, tmp_path: Path) -> None:
    """The whole output, or the contract in it; the same plan comes out."""
    command = ["plan", str(rows), "--model", str(base), "--json"]
    printed = json.loads(runner.invoke(app, [*command, "--rank", "4"]).output)
    for name, content in (("whole", printed), ("contract", printed["plan"]["contract"])):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(content))
        result = runner.invoke(app, [*command, "--contract", str(path)])
        assert result.exit_code == 0, result.output
        assert json.loads(result.output)["plan"] == printed["plan"]


def test_every_spelling_of_a_device_is_taken(base: Path, rows: Path) -> None:
    result = runner.invoke(app, ["plan", str(rows), "--model", str(base), "--device", "GPU"])
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize("option", ["--vram-gb", "--max-lora-rank"])
def test_negative_sizes_are_refused(base: Path, rows: Path, option: str) -> None:
    assert runner.invoke(app, ["plan", str(rows), "--model", str(base), option, "-1"]).exit_code == 2


def test_a_failure_is_json_where_json_was_requested(base: Path, rows: Path) -> None:
    result = runner.invoke(app, ["plan", str(rows), "--model", str(base), "--json", "--batch-size", "-1"])
    error = json.loads(result.output)["error"]
    assert (result.exit_code, error["code"], error["param"]) == (1, "CONTRACT_INVALID", "exec.batch_size")
    assert error["message"]


def test_a_value_of_an_auto_rule_is_not_called_explicit(base: Path, rows: Path) -> None:
    result = runner.invoke(app, ["plan", str(rows), "--model", str(base), "--epochs", "2"])
    shown = " ".join(result.output.split())
    assert "exec.batch_size (auto)" in shown
    assert "exec.epochs (" not in shown


def test_the_path_of_a_base_is_in_no_digest(base: Path, rows: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / base.name
    shutil.copytree(base, copy)
    plans = [
        json.loads(runner.invoke(app, ["plan", str(rows), "--model", str(path), "--json"]).output)["plan"]
        for path in (base, copy)
    ]
    assert plans[0] == plans[1]


@pytest.mark.parametrize(
    ("folder", "name"), [("my model", "my-model"), ("._hidden", "hidden"), ("模型", "base"), ("Tiny_1.5", "Tiny_1.5")]
)
def test_any_folder_of_a_base_can_be_planned_for(base: Path, rows: Path, folder: str, name: str) -> None:
    moved = base.rename(base.parent / folder)
    result = runner.invoke(app, ["plan", str(rows), "--model", str(moved), "--json"])
    assert json.loads(result.output)["plan"]["base"]["name"] == name


def test_the_folder_that_the_command_runs_in_has_its_name(
    base: Path, rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(base)
    here = runner.invoke(app, ["plan", str(rows), "--model", ".", "--json"])
    named = runner.invoke(app, ["plan", str(rows), "--model", str(base), "--json"])
    assert json.loads(here.output)["plan"] == json.loads(named.output)["plan"]


def test_the_name_of_a_bases_folder_is_not_in_the_contracts_digest(base: Path, rows: Path) -> None:
    """The plan's has it: a plan is what one installation stores, with its names and ids of files."""
    plan = ["plan", str(rows), "--json", "--model"]
    before = json.loads(runner.invoke(app, [*plan, str(base)]).output)["plan"]
    after = json.loads(runner.invoke(app, [*plan, str(base.rename(base.parent / "renamed"))]).output)["plan"]
    assert (after["base"]["name"], after["contract_digest"]) == ("renamed", before["contract_digest"])


@pytest.mark.parametrize(
    ("machine", "mebibytes"), [("new driver", 24564), ("two cards", 23028), ("MIG", 19968), ("WSL2", 24564)]
)
def test_usable_gpu_is_planned_for_with_its_memory(
    base: Path, rows: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, mebibytes: int
) -> None:
    """The plan uses the smaller card's memory of two, and of a MIG instance its own memory."""
    pretend(MACHINES[machine], tmp_path / "gpu", monkeypatch)
    found = json.loads(runner.invoke(app, ["plan", str(rows), "--model", str(base), "--json"]).output)
    assert found["device"] == {"device": "cuda", "source": "this machine"}
    assert found["precision"]["precision"] == "bfloat16"
    assert found["precision"]["room_bytes"] == pytest.approx(0.7225 * mebibytes * 2**20, rel=1e-3)
    assert "MENS_TRAINER_GPU_SHARE=0.4" in found["notes"][-1]


def test_share_of_the_gpu_is_planned_for_and_the_whole_one_is_named(
    base: Path, rows: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(MACHINES["new driver"], tmp_path / "gpu", monkeypatch)
    plan = ["plan", str(rows), "--model", str(base), "--json"]
    monkeypatch.setenv("MENS_TRAINER_GPU_SHARE", "0.4")
    shared = json.loads(runner.invoke(app, plan).output)
    assert shared["precision"]["room_bytes"] == pytest.approx(0.4 * 0.7225 * 24564 * 2**20, rel=1e-3)
    assert not [note for note in shared["notes"] if "whole GPU" in note]
    monkeypatch.setenv("MENS_TRAINER_GPU_SHARE", "2")
    assert "MENS_TRAINER_GPU_SHARE" in runner.invoke(app, plan[:-1]).output
    monkeypatch.delenv("MENS_TRAINER_GPU_SHARE")
    elsewhere = json.loads(runner.invoke(app, [*plan, "--vram-gb", "16"]).output)
    assert not [note for note in elsewhere["notes"] if "whole GPU" in note]


@pytest.mark.parametrize(
    ("machine", "fault"),
    [
        (
            "old driver",
            "NVIDIA GeForce RTX 4090 (driver 550.54.14) cannot be used: torch 2.13.0+cu130 needs driver 580",
        ),
        ("CPU build", "torch 2.13.0+cpu is built without CUDA"),
        ("T4", "Tesla T4 (driver 580.65.06) cannot be used: its compute capability 7.5 has no bfloat16"),
        ("V100", "has no kernels for its compute capability 7.0"),
    ],
)
def test_unusable_gpu_is_refused_with_its_reason(
    base: Path, rows: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, fault: str
) -> None:
    pretend(MACHINES[machine], tmp_path / "gpu", monkeypatch)
    plan = ["plan", str(rows), "--model", str(base)]
    refused = runner.invoke(app, plan)
    said = " ".join(refused.output.split())
    assert refused.exit_code == 1
    assert "GPU_UNUSABLE" in said
    assert fault in said
    assert runner.invoke(app, [*plan, "--device", "cpu"]).exit_code == 0


def test_the_device_and_the_time_have_their_reasons(
    base: Path, rows: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pretend(None, tmp_path / "gpu", monkeypatch)
    plan = ["plan", str(rows), "--model", str(base)]
    table = " ".join(runner.invoke(app, plan).output.split())
    assert "device CPU (this machine)" in table
    assert "from FLOPs, a guess" in table
    for options, device in (
        ([], {"device": "cpu", "source": "this machine"}),
        (["--device", "cpu"], {"device": "cpu", "source": "--device"}),
        (["--device", "gpu"], {"device": "cuda", "source": "--device"}),
        (["--vram-gb", "16"], {"device": "cuda", "source": "--vram-gb"}),
    ):
        found = json.loads(runner.invoke(app, [*plan, *options, "--json"]).output)
        assert found["device"] == device
        assert found["precision"]["precision"] != ("float32" if device["device"] == "cuda" else "bfloat16")
        assert found["estimate"]["seconds"] == found["estimate"]["time"]["seconds"] > 0


def test_continue_takes_base_and_shape_from_an_adapters_folder(base: Path, rows: Path, tmp_path: Path) -> None:
    """Nothing is asked for: the folder of an exported adapter has all that is needed."""
    entry = BaseModelEntry(name="mine", source=LocalSource(path=str(base)), digests=digest_model_folder(base))
    save_catalog(tmp_path / "home" / "catalog.json", Catalog(bases=[entry, entry.model_copy(update={"name": "other"})]))
    folder, manifest = tmp_path / "adapter", manifest_of(entry, provenance={"answer_models": ["of the parent"]})
    folder.mkdir()
    (folder / MANIFEST_NAME).write_bytes(manifest.to_bytes())
    note = {"model": "large-2", "endpoint": "https://models.example.com", "terms": "permits_training"}
    line = {"id": "i", "source": "s", "locator": {}, "generator": {"a": note}}
    rows.with_suffix(".sources.jsonl").write_text(json.dumps(line) + "\n")
    plan = ["plan", str(rows), "--continue", str(folder)]
    found = json.loads(runner.invoke(app, [*plan, "--json"]).output)["plan"]
    assert (found["base"]["name"], found["parent"]["id"]) == ("mine", manifest.adapter_id)
    assert (found["contract"]["adapter"]["rank"], found["contract"]["adapter"]["alpha"]) == (8, 16)
    models = ["large-2 (https://models.example.com): permits_training", "of the parent"]
    assert found["contract"]["provenance"]["answer_models"] == models
    shown = " ".join(runner.invoke(app, plan).output.split())
    assert f"starts from {manifest.adapter_id[:32]}" in shown
    refused = runner.invoke(app, [*plan, "--rank", "4"])
    assert (refused.exit_code, "CONTINUE_SHAPE_UNSUPPORTED" in refused.output) == (1, True)


def test_pairs_are_planned_by_their_method_only(base: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps(row) + "\n" for row in PAIRS * 5))
    plan = ["plan", str(pairs), "--model", str(base), "--json"]
    refused = runner.invoke(app, plan)
    assert (refused.exit_code, "ROWS_OF_OTHER_METHOD" in refused.output) == (1, True)
    assert "--method dpo" in " ".join(refused.output.split())
    found = json.loads(runner.invoke(app, [*plan, "--method", "dpo", "--beta", "0.2"]).output)
    contract = found["plan"]["contract"]
    assert (contract["method"]["type"], contract["preference"]["beta"]) == ("dpo", 0.2)
    assert contract["exec"]["learning_rate"] == auto_exec(40, None, pairs=True)["learning_rate"]
    assert found["supervision"]["rows"] == found["data"]["training"]["preferences"]["pairs"] == 40
    assert found["estimate"]["configuration"]["sequences"] == 2


def test_the_adapters_method_keeps_its_flag(base: Path, rows: Path) -> None:
    plan = ["plan", str(rows), "--model", str(base), "--json", "--method", "qlora"]
    assert json.loads(runner.invoke(app, plan).output)["plan"]["contract"]["adapter"]["method"] == "qlora"
