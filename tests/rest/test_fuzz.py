"""Some requests that follow from the OpenAPI document; `make fuzz-http` sends thousands."""

import pytest

from tests.rest.fuzz import SMALL, fuzz
from tests.rest.served import TOKENS

pytest.importorskip("schemathesis")


@pytest.mark.parametrize("token", [TOKENS.full, None], ids=["token", "none"])
def test_no_request_is_answered_with_an_error_of_the_server(token: str | None):
    sent, _ = fuzz(SMALL, token)
    assert sent >= SMALL
