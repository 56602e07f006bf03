"""The comparison of an imported adapter's chat template with its base's."""

from __future__ import annotations

import pytest

from shared.errors import ArtifactInvalid, Code, InvalidRequest
from shared.tokenization.tokenizer import Tokenizer
from tests.support.tiny_base import write_base
from worker.bases.template_check import refuse_difference


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
