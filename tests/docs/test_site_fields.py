"""Comments beside fields, and examples, as the reference of the site shows them."""

import doctest

import pytest


def test_examples_of_its_functions() -> None:
    pytest.importorskip("griffe")
    from docs import site_fields

    found = doctest.testmod(site_fields)
    assert found.attempted >= 1
    assert found.failed == 0
