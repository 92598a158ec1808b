"""The JSON Schema files, and the tables of the page of file formats, are those that the readers' types make."""

import doctest

import pytest

from docs import field_texts
from docs.schemas import PAGE, RECORDS, page, path, schema, text


@pytest.mark.parametrize("form", RECORDS)
def test_the_schemas_are_those_that_are_made(form: str) -> None:
    assert path(form).read_text() == text(form), "make them anew: python -m docs.schemas"


def test_the_tables_of_the_page_are_those_that_are_made() -> None:
    assert PAGE.read_text() == page(), "make them anew: python -m docs.schemas"


@pytest.mark.parametrize("form", RECORDS)
def test_every_object_of_a_format_has_a_table_and_every_field_a_text(form: str) -> None:
    whole = schema(form)
    for record in (whole, *whole.get("$defs", {}).values()):
        fields = record["properties"].items()
        assert [name for name, field in fields if not field.get("description") and name != "format"] == []
        nested = "PlacementFile", "PlanRecord", "StageRecord", "ReplicaRecord", "Budget"
        assert record["title"] in nested or f"<!-- fields of {record['title']} of {form} -->" in PAGE.read_text()


def test_examples_of_texts() -> None:
    found = doctest.testmod(field_texts)
    assert (found.attempted, found.failed) == (4, 0)
