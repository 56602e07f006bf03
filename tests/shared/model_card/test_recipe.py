"""The recipe of a run: values that the run limited are those that it used, and the others are the contract's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shared.contract.contracts import FineTuneContract
from shared.contract.plan import warmup_steps
from shared.model_card.recipe import used_values


@given(configured=st.integers(0, 1000), planned=st.integers(1, 1000), left=st.integers(0, 10))
def test_only_bounded_values_differ_from_the_contract(configured: int, planned: int, left: int) -> None:
    contract = FineTuneContract.model_validate(
        {"data": {"train_file": "f"}, "exec": {"warmup_steps": configured}, "quant": {"base": "nf4"}}
    ).model_dump(mode="json")
    steps = max(1, planned - left)
    used = used_values(contract, steps=steps, planned=planned)
    assert used["exec"].pop("warmup_steps") == warmup_steps(configured, planned)
    assert contract["exec"].pop("warmup_steps") == configured
    if steps < planned:
        assert used["exec"].pop("epochs") == f"3 planned; {steps} of {planned} steps were made"
        del contract["exec"]["epochs"]
    assert used == contract


def test_an_option_without_effect_is_left_out() -> None:
    quant = {"base": "none", "double_quant": True}
    assert used_values({"quant": quant}, steps=1, planned=1) == {"quant": {"base": "none"}}
