"""What a backward pass in two chunks takes."""

from placeto.runtime.split_chunks import split_chunks


def test_a_parameter_takes_time_beside_its_ops() -> None:
    fit = split_chunks()
    assert fit.us_per_flop == 0.0
    took = 8 * fit.fixed_us + 8 * 4 * 512 * 512 * fit.us_per_byte  # of a stage of eight matrices
    assert 10 < took < 1e6
