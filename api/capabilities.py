"""The capability matrix: what this release supports, compared with the original's two engines, and the proof of each
row.

Served as ``GET /v1/capabilities``. A row whose proof is a gate is refused with that code; a row whose proof is a
behaviour gives the error code that shows it. The tests check every row against its proof.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from shared.errors import Code


class CapabilityValue(BaseModel):
    """Frozen, closed value: the base of the matrix and its parts."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Proof(CapabilityValue):
    """Evidence for a row."""

    kind: Literal["gate", "behaviour"]
    code: Code = Field(description="The code of the refusal.")
    statement: str = Field(description="Description of the refusal, in one sentence.")
    tests: tuple[str, ...] = Field(
        (), description="Tests that measure properties which no refusal can show, by file and name."
    )


class Capability(CapabilityValue):
    """One row of the matrix."""

    id: str
    title: str
    burn: str = Field(description="The original's Burn LoRA engine; deleted.")
    candle: str = Field(description="The original's Candle QLoRA engine.")
    mens: str = Field(description="This installation.")
    proof: Proof


class CapabilityMatrix(CapabilityValue):
    """The whole matrix."""

    version: Literal[1] = 1
    rows: tuple[Capability, ...]


def _gate(code: Code, statement: str, *tests: str) -> Proof:
    return Proof(kind="gate", code=code, statement=statement, tests=tests)


def _behaviour(code: Code, statement: str, *tests: str) -> Proof:
    return Proof(kind="behaviour", code=code, statement=statement, tests=tests)


CAPABILITIES = CapabilityMatrix(
    rows=(
        Capability(
            id="training_backend",
            title="Training backend",
            burn="LoRA; planned, then rejected",
            candle="QLoRA",
            mens="QLoRA and LoRA over a full-precision base: transformers, peft and bitsandbytes; the Burn backend is rejected",
            proof=_gate(
                Code.BURN_LORA_REJECTED,
                "The backend burn passes the planner's gates and is then refused.",
                "tests/worker/test_train.py::test_the_loss_falls",
                "tests/worker/training/model/test_load.py::test_only_lora_is_trainable_and_in_fp32",
                "tests/worker/training/test_full_precision.py::test_losses_and_weights_are_those_of_a_plain_loop",
            ),
        ),
        Capability(
            id="graph_depth",
            title="Graph depth",
            burn="full causal stack",
            candle="proxy stack of one projection a block; later the full graph",
            mens="full graph: every block, always",
            proof=_gate(
                Code.PARTIAL_DEPTH_UNSUPPORTED,
                "A cap on the layers below the base's depth is refused.",
                "tests/worker/training/model/test_load.py::test_lora_is_on_every_linear_layer_and_on_nothing_else",
                "tests/worker/training/test_loss.py::test_every_layer_gets_a_gradient",
            ),
        ),
        Capability(
            id="training_objective",
            title="Training objective",
            burn="token-level cross-entropy, prompt masked",
            candle="last-token loss on plain text; later masked cross-entropy on the last 64 tokens",
            mens="cross-entropy on every assistant token; optionally on the last K, at most 64",
            proof=_gate(
                Code.CE_LAST_K_TOO_LARGE,
                "exec.qlora_ce_last_k defaults to 0; over exec.seq_len it is refused.",
                "tests/worker/training/test_loss.py::test_loss_is_the_sum_over_learnt_positions",
                "tests/worker/test_train.py::test_last_k_is_used",
            ),
        ),
        Capability(
            id="data_order",
            title="Which rows, when, and how much they weigh",
            burn="every row, shuffled",
            candle="curriculum and row weights; epochs without rows are skipped silently",
            mens="filters, curriculum by difficulty, row weights by category and rating, replay from a second file",
            proof=_behaviour(
                Code.CORPUS_TOO_SMALL,
                "A curriculum that leaves an epoch without rows is not planned.",
                "tests/worker/test_train.py::test_low_ratings_are_left_out",
                "tests/worker/training/data/test_row_order.py::test_a_curriculum_begins_with_the_easy_rows",
                "tests/worker/training/test_loss.py::test_a_rows_weight_moves_its_gradient_and_not_the_divisor",
                "tests/worker/training/data/test_replay.py::test_an_epoch_has_its_rows_and_the_planned_share_of_replay",
            ),
        ),
        Capability(
            id="optimizer",
            title="Optimizer",
            burn="AdamW",
            candle="AdamW without state in its checkpoints; a reserved name for an experiment",
            mens="AdamW in fp32, or paged with moments in 8 bit; all of its state in every checkpoint",
            proof=_gate(
                Code.OPTIMIZER_EXPERIMENT_OFF,
                "The reserved experiment has no optimizer and is refused.",
                "tests/worker/training/test_optimizer.py::test_first_step_is_adamw_by_hand",
                "tests/worker/training/test_optimizer.py::test_8bit_moments_take_nearly_the_same_way",
                "tests/worker/training/test_checkpoint.py::test_all_moments_are_stored",
                "tests/worker/test_train.py::test_resumed_run_is_the_uninterrupted_run",
            ),
        ),
        Capability(
            id="device",
            title="Device",
            burn="Wgpu or CPU",
            candle="CPU, CUDA, Metal",
            mens="CPU, or NVIDIA GPUs by CUDA; which of them, and whether the CPU will do, is the contract's choice",
            proof=_gate(
                Code.GPU_REQUIRED,
                "device.require_gpu is refused where the job would run on the CPU.",
                "tests/worker/training/model/test_load.py::test_the_device_is_the_one_the_contract_allows",
                "tests/shared/contract/test_refusals.py::test_target_device",
            ),
        ),
        Capability(
            id="chat_marks",
            title="Marks of a turn",
            burn="ChatML",
            candle="ChatML with marks of one's own",
            mens="the base's own chat template, which the server uses too",
            proof=_behaviour(
                Code.CONTRACT_UNSUPPORTED,
                "Marks in the chatml section are not planned.",
                "tests/vllm/test_certificates.py::test_one_changed_byte_of_the_template_fails",
                "tests/vllm/test_certificates.py::test_every_probe_chat_has_the_trainers_token_ids",
            ),
        ),
        Capability(
            id="reward_hook",
            title="Reward hooks",
            burn="none",
            candle="commands that score answers, run without a sandbox",
            mens="none: supervised training does not score answers",
            proof=_behaviour(Code.CONTRACT_UNSUPPORTED, "A reward.hook is not planned."),
        ),
        Capability(
            id="base_quant",
            title="Quantisation of the frozen base",
            burn="none",
            candle="NF4 by qlora-rs",
            mens="NF4 by bitsandbytes, with double quantisation as the contract says; or none: bf16, fp32 on a CPU",
            proof=_gate(
                Code.NF4_REQUIRES_QLORA,
                "NF4 under another method than QLoRA is refused.",
                "tests/worker/training/model/test_load.py::test_every_linear_layer_but_the_head_is_in_nf4",
            ),
        ),
        Capability(
            id="tokenizer",
            title="Tokenizer",
            burn="Vox by default; hf for GPT-2 layouts only",
            candle="hf only",
            mens="hf only: the base's own tokenizer.json and chat template",
            proof=_gate(
                Code.QLORA_REQUIRES_HF_TOKENIZER,
                "data.tokenizer_mode vox is refused.",
                "tests/worker/training/data/test_tokenizers_agree.py::test_a_tokenizer_json_that_says_otherwise_stops_the_job",
            ),
        ),
        Capability(
            id="weight_loading",
            title="Weight loading",
            burn="GPT-2 warm start",
            candle="f32 embedding and selected keys; later all block tensors",
            mens="every tensor, from safetensors alone; pickle is never opened",
            proof=_behaviour(
                Code.CATALOG_INVALID,
                "A folder whose weights are .bin does not enter the catalogue.",
                "tests/worker/training/model/test_load.py::test_weights_that_are_pickle_are_not_loaded",
            ),
        ),
        Capability(
            id="artifacts",
            title="Artifacts",
            burn=".bin checkpoint",
            candle="safetensors with a v2 sidecar; v3 manifest",
            mens="safetensors as PEFT and vLLM read them, with a v3 manifest whose digest is the adapter's name",
            proof=_behaviour(
                Code.ADAPTER_DIGEST_MISMATCH,
                "A manifest that is not byte for byte the published one is refused.",
                "tests/worker/training/test_adapter.py::test_folder_verifies_against_its_manifest_and_its_base",
                "tests/worker/test_exported_adapter.py::test_peft_loads_the_folder_with_equal_logits",
                "tests/vllm/test_imported_adapters.py::test_a_peft_folder_is_served_with_the_effect_that_numpy_predicts",
            ),
        ),
        Capability(
            id="merge_fidelity",
            title="Merge fidelity",
            burn="static merge, not with rotary positions",
            candle="deterministic f32 deltas for the exported keys, as a subset of the model",
            mens="every adapted tensor, in a complete model folder, whose logits are compared with base + adapter, and which is"
            " offered once a replica that serves it was measured; or the original's subset; rotary positions commute with it;"
            " .bin is refused",
            proof=_behaviour(
                Code.MERGE_REJECTS_BURN_BIN,
                "A .bin file is refused before anything is parsed.",
                "tests/worker/test_merge.py::test_a_merge_past_its_limit_fails_with_its_numbers",
                "tests/worker/test_merge.py::test_a_merge_that_left_the_adapter_out_is_refused",
                "tests/worker/merging/test_subset.py::test_the_file_holds_the_originals_numbers_and_nothing_else",
                "tests/vllm/test_merged_models.py::test_a_merged_model_is_offered_once_its_replica_was_measured",
                "tests/worker/merging/test_rotary_positions.py::test_queries_and_keys_are_merged_before_they_are_rotated",
            ),
        ),
        Capability(
            id="logits_parity",
            title="Parity of logits between stacks",
            burn="not asserted end to end",
            candle="not asserted end to end; four tests of primitives",
            mens="the original's four tests, NF4 against a reference, merged against base + adapter, served against trained;"
            " every serving replica scores probe rows with base and adapter before the job succeeds",
            proof=_behaviour(
                Code.ADAPTER_NO_EFFECT,
                "An adapter without measurable effect fails its job.",
                "tests/worker/test_parity.py::test_f32_matmul",
                "tests/worker/test_parity.py::test_f32_linear_lm_logits",
                "tests/worker/test_parity.py::test_nf4_dequant_lm_reference",
                "tests/worker/test_parity.py::test_cross_entropy",
                "tests/worker/test_parity.py::test_nf4_blocks_are_those_of_bitsandbytes",
                "tests/worker/test_parity.py::test_nf4_with_quantised_scales_is_that_of_bitsandbytes",
                "tests/worker/test_merge.py::test_merged_logits_are_those_of_base_and_adapter",
                "tests/vllm/test_parity.py::test_served_tokens_are_the_trained_models",
                "tests/vllm/test_certificates.py::test_certificate_on_the_base",
            ),
        ),
        Capability(
            id="serving",
            title="Serving",
            burn="own server; deleted",
            candle="none: merged files go to other runtimes",
            mens="vLLM, adapters by digest on one base: Qwen2, Qwen2.5, Qwen3, Qwen3.5, Llama and Mistral",
            proof=_behaviour(
                Code.ADAPTER_NOT_SERVABLE,
                "An adapter with a feature that vLLM ignores is refused.",
                "tests/vllm/test_server.py::test_adapter_has_an_effect_and_two_adapters_differ",
                "tests/vllm/test_server.py::test_tampered_adapter_is_refused_and_others_respond",
                "tests/vllm/test_qwen3_5.py::test_each_kind_of_layer_is_adapted_as_peft_adapts_it",
            ),
        ),
        Capability(
            id="evaluation",
            title="Evaluation of a model",
            burn="none",
            candle="tasks run against a mocked engine, whose failures were reported as results",
            mens="a job that asks through the API, stores every answer, and compares two models pair by pair",
            proof=_behaviour(
                Code.EVAL_INVALID,
                "A criterion that names a field which its items do not have is refused at once.",
                "tests/worker/evaluation/test_run.py::test_every_item_is_asked_once_judged_and_stored",
                "tests/worker/evaluation/test_run.py::test_two_models_get_the_same_requests_and_are_compared_pair_by_pair",
            ),
        ),
        Capability(
            id="code_of_graders",
            title="Python graders",
            burn="none",
            candle="none; reward commands run without a sandbox",
            mens="run in a sandbox that is attacked before it is trusted",
            proof=_behaviour(
                Code.SANDBOX_UNAVAILABLE,
                "Without a sandbox, a Python grader is refused.",
                "tests/worker/evaluation/test_run.py::test_criteria_of_code_without_a_sandbox_end_the_job_with_what_is_missing",
                "tests/shared/sandbox/test_attacks.py::test_a_level_that_does_not_hold_is_none",
            ),
        ),
        Capability(
            id="mobile_edge",
            title="On-device target",
            burn="none",
            candle="limits on length, rank and batch",
            mens="the same limits, on the CPU; no on-device runtime or export",
            proof=_gate(
                Code.MOBILE_EDGE_REQUIRES_CPU,
                "artifact.deployment_target mobile_edge on CUDA is refused.",
                "tests/shared/contract/test_presets.py::test_mobile_preset_sets_target_and_device",
                "tests/shared/contract/test_presets.py::test_domain_over_the_mobile_limits_is_lowered",
            ),
        ),
    )
)
"""Every capability. Ids are stable."""


def capabilities_here(sandbox: str) -> CapabilityMatrix:
    """Return the matrix of this installation.

    Args:
        sandbox: the sandbox that code runs in here, or why it runs in none; a sentence without its full stop.
    """
    rows = (
        row.model_copy(update={"mens": f"{row.mens}; here {sandbox}"}) if row.id == "code_of_graders" else row
        for row in CAPABILITIES.rows
    )
    return CapabilityMatrix(rows=tuple(rows))
