"""Fits of what wasn't measured."""

import pytest

from placeto.runtime.measuring.fitting import Sample, fit, held_out


def sample(op_type: str, size: int, time_us: float, flops: float = 0.0) -> Sample:
    return Sample(f"{op_type}({size},{flops})", op_type, flops, float(size), time_us)


def test_coefficients_of_exact_times_are_found() -> None:
    samples = [sample("mm", b, 3 + 1e-6 * f + 1e-4 * b, f) for b, f in [(10, 1e6), (1e5, 1e6), (1e3, 1e9), (1e6, 1e7)]]
    found = fit(samples)["mm"]
    assert (found.fixed_us, found.us_per_flop, found.us_per_byte) == pytest.approx((3, 1e-6, 1e-4))


def test_a_type_with_one_signature_has_the_common_fit_times_a_factor() -> None:
    samples = [sample("add", size, 2 + size / 100) for size in (0, 100, 1000, 10_000)]
    fits = fit([*samples, sample("exp", 1000, 36.0)])
    assert fits["exp"].time_us(0, 1000) == pytest.approx(36)
    ratio = fits["exp"].time_us(0, 50) / fits["*"].time_us(0, 50)
    assert ratio == pytest.approx(fits["exp"].time_us(0, 10**6) / fits["*"].time_us(0, 10**6))


def test_coefficients_are_never_negative() -> None:
    found = fit([sample("odd", size, time) for size, time in [(10, 9.0), (100, 5.0), (1000, 1.0)]])
    for one in found.values():
        assert min(vars(one).values()) >= 0


def test_each_signature_is_held_out_once() -> None:
    samples = [sample("add", size, 2 + size / 100) for size in range(0, 3000, 100)]
    predicted = held_out(samples)
    assert set(predicted) == {one.signature for one in samples}
    assert all(predicted[one.signature] == pytest.approx(one.time_us) for one in samples)
    broken = [one._replace(time_us=1000.0) if one.bytes_accessed == 500 else one for one in samples]
    assert held_out(broken)["add(500,0.0)"] == pytest.approx(7)  # it hasn't seen it


def test_nothing_to_fit() -> None:
    with pytest.raises(ValueError, match="at least one"):
        fit([])
    assert held_out([sample("add", 1, 1.0)]) == {}
