"""Sizes, work and times with units; the examples stand in the docstrings."""

import pytest

from placeto.problem.units import format_bytes, format_flop, format_us


def test_three_digits_never_round_to_four() -> None:
    for exponent in range(3, 18):
        for mantissa in (1.0, 9.994, 9.996, 99.94, 99.96, 999.4, 999.6):
            number = format_bytes(mantissa * 10**exponent).split()[0]
            assert len(number.replace(".", "")) == 3, number


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_bytes(999.4), "999 B"),
        (format_bytes(2**63 - 1), "9.22 EB"),
        (format_flop(1000), "1.00 kFLOP"),
        (format_us(3.6e9), "3600 s"),  # there is no larger unit
        (format_us(0.004), "0.00 us"),
    ],
)
def test_at_the_ends(text: str, expected: str) -> None:
    assert text == expected
