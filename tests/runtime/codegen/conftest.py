"""Here code generation is on, whatever the environment says."""

import pytest

from penstock.runtime.codegen.switch import VARIABLE


@pytest.fixture(autouse=True)
def _codegen_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
