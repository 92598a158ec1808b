"""The JSON Schema files are those that the readers' types make."""

import pytest

from docs.schemas import RECORDS, path, text


@pytest.mark.parametrize("form", RECORDS)
def test_the_schemas_are_those_that_are_made(form: str) -> None:
    assert path(form).read_text() == text(form), "make them anew: python -m docs.schemas"
