"""Sizes, work and times as people read them: three digits and a unit."""

from __future__ import annotations

import re

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_FLOP = ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP")
_TIMES = ("us", "ms", "s")


def format_bytes(size: float) -> str:
    """Bytes in decimal units (1 kB is 1000 B), whole below 1 kB, else with three significant digits.

    >>> format_bytes(0), format_bytes(999), format_bytes(1536), format_bytes(999_999)
    ('0 B', '999 B', '1.54 kB', '1.00 MB')
    >>> format_bytes(16e9), format_bytes(-2_500_000)
    ('16.0 GB', '-2.50 MB')
    """
    return f"{size:.0f} B" if abs(size) < 999.5 else _scaled(size, _BYTES)


def parse_bytes(text: str) -> int:
    """Return the bytes of a size with a decimal unit, or without a unit.

    >>> parse_bytes("1GB"), parse_bytes("512 MB"), parse_bytes("0"), parse_bytes("1.5kB")
    (1000000000, 512000000, 0, 1500)

    Raises:
        ValueError: the text is no size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", text)
    unit = (
        None
        if match is None
        else {name.upper(): 1000**power for power, name in enumerate(_BYTES)}.get(match[2].upper() or "B")
    )
    if match is None or unit is None:
        raise ValueError(f"{text!r} is no size such as 1GB or 512MB")
    return round(float(match[1]) * unit)


def format_flop(work: float) -> str:
    """FLOPs in decimal units, with digits as in `format_bytes`.

    >>> format_flop(256), format_flop(4.089e9)
    ('256 FLOP', '4.09 GFLOP')
    """
    return f"{work:.0f} FLOP" if abs(work) < 999.5 else _scaled(work, _FLOP)


def format_rate(each_second: float) -> str:
    """A rate per second with four significant digits, from 9999.5 on as a whole number.

    >>> format_rate(0.123456), format_rate(977.42), format_rate(243_912.3)
    ('0.1235', '977.4', '243,912')
    """
    return f"{each_second:.4g}" if each_second < 9999.5 else f"{each_second:,.0f}"


def format_us(time_us: float) -> str:
    """Microseconds with three significant digits, from us to s.

    >>> format_us(0), format_us(5.7), format_us(1234.5), format_us(999_999), format_us(9e7)
    ('0 us', '5.70 us', '1.23 ms', '1.00 s', '90.0 s')
    """
    return "0 us" if time_us == 0 else _scaled(time_us, _TIMES)


def _scaled(value: float, units: tuple[str, ...]) -> str:
    """The value with three significant digits, in the first unit in which it is below 1000, else in the last unit."""
    unit = 0
    while unit < len(units) - 1 and abs(value) >= 999.5:
        value, unit = value / 1000, unit + 1
    digits = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{digits}f} {units[unit]}"
