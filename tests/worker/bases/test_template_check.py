"""The comparison of an imported adapter's chat template with its base's."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from shared.errors import ArtifactInvalid, Code, InvalidRequest
from shared.sandbox import landlock
from shared.tokenization.tokenizer import Tokenizer
from tests.support.tiny_base import write_base
from worker.bases.template_check import refuse_difference
from worker.run_folder import ERROR_NAME, PLAN_NAME, TemplateCheck


@pytest.fixture
def tokenizer(tmp_path):
    return Tokenizer.load(write_base(tmp_path / "written"))


def test_a_template_that_makes_the_same_tokens_is_taken(tokenizer):
    """As trainers write it: another text, marked for masks, that means the same."""
    refuse_difference(tokenizer, "{#- saved by a trainer #}" + tokenizer.template.text)
    refuse_difference(
        tokenizer, tokenizer.template.text.replace("{%- generation %}", "").replace("{% endgeneration %}", "")
    )


def test_a_template_is_compared_by_the_tokens_of_plain_chats(tokenizer):
    changed = tokenizer.template.text.replace("<|im_start|>assistant", "<|im_start|>model")
    with pytest.raises(ArtifactInvalid, match="'plain'") as refused:
        refuse_difference(tokenizer, changed)
    assert refused.value.code == Code.ADAPTER_TEMPLATE_MISMATCH
    assert refused.value.details["trainer_id"] == ord("m") - ord("!")
    assert refused.value.details["server_id"] == ord("a") - ord("!")


def test_a_template_that_is_none_is_refused(tokenizer):
    with pytest.raises(InvalidRequest) as refused:
        refuse_difference(tokenizer, "{% for")
    assert refused.value.code == Code.TEMPLATE_UNSUPPORTED


@pytest.mark.parametrize("source", ["{{ raise_exception('no chat') }}", "{{ nobody.defined.this() }}"])
def test_template_that_refuses_the_chats_of_the_base_is_refused(tokenizer, source):
    with pytest.raises(ArtifactInvalid, match="refuses the probe chat 'plain'") as refused:
        refuse_difference(tokenizer, source)
    assert refused.value.code == Code.ADAPTER_TEMPLATE_MISMATCH


ESCAPES = """
import os, socket, sys
from pathlib import Path
from worker.bases.template_check import confine

run_dir = Path(sys.argv[1])
confine(run_dir)
(run_dir / "own").write_text("may be written")
for attempt in (lambda: Path("/etc/hostname").read_text(), lambda: (run_dir.parent / "out").write_text("x"), socket.socket, os.fork):
    try:
        attempt()
    except OSError:
        print("held")
"""


@pytest.mark.skipif(not landlock.abi_version(), reason="this kernel has no Landlock")
def test_template_process_has_its_own_files_and_no_network(tmp_path):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    done = subprocess.run([sys.executable, "-c", ESCAPES, str(run_dir)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["held"] * 4, done.stderr
    assert [path.name for path in run_dir.iterdir()] == ["own"]


@pytest.mark.parametrize(("change", "code"), [("", None), ("assistant", Code.ADAPTER_TEMPLATE_MISMATCH)])
def test_confined_process_compares_and_says_why(tmp_path, change, code):
    base, run_dir = write_base(tmp_path / "written"), tmp_path / "run"
    run_dir.mkdir()
    template = tmp_path / "template.jinja"
    text = Tokenizer.load(base).template.text
    template.write_text(text.replace(f"<|im_start|>{change}", "<|im_start|>model") if change else text)
    (run_dir / PLAN_NAME).write_text(TemplateCheck(base=str(base), template=str(template)).model_dump_json())
    program = [sys.executable, "-m", "worker.bases.template_check", str(run_dir / PLAN_NAME), str(run_dir)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    error = run_dir / ERROR_NAME
    assert (json.loads(error.read_text())["code"] if error.exists() else None) == code, done.stderr
    assert (done.returncode == 0) == (code is None)
    assert "not confined" not in done.stderr or not landlock.abi_version()
