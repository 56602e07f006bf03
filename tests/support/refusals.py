"""Error codes with which calls are refused."""

from __future__ import annotations

from typing import Any

import pytest

from shared.errors import MensError


def code(call: Any, *arguments: Any) -> str:
    with pytest.raises(MensError) as caught:
        call(*arguments)
    return caught.value.code
