"""Sections of both cards: the fields that the hub reads, and the required attributions."""

from __future__ import annotations

import yaml

from shared.model_card.common_sections import attribution, front_matter, limits


def test_front_matter_is_yaml_whatever_the_names_contain() -> None:
    _, matter, rest = front_matter("a: b\n---\nlicense: mit", "Our: own", "qlora").split("---\n")
    read = yaml.safe_load(matter)
    assert rest == ""
    assert (read["base_model"], read["tags"]) == ("a: b --- license: mit", ["lora", "qlora", "mens"])
    assert (read["license"], read["license_name"]) == ("other", "Our: own")


def test_attribution_names_base_and_licence_without_markup() -> None:
    assert "must name org/base under its licence (&lt;b&gt;)." in attribution("org/base", "<b>")
    assert "must name org/base." in attribution("org/base", None)


def test_each_limit_is_a_bullet() -> None:
    assert limits(["One.", "Two."]) == "\n## Limits\n\n- One.\n- Two.\n"
