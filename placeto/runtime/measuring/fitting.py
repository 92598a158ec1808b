"""Predict the times of ops that weren't measured from those that were, and say how far off predictions are.

By op type, time = fixed + FLOPs / rate + bytes / bandwidth, with coefficients >= 0 and the least sum of squared
relative errors. A type with only one signature has the fit of all types, times the factor that makes it exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from scipy.optimize import nnls

from placeto.problem.costs.profiled import OTHERS, Fit

LEAST = 2  # signatures that a type needs for a fit of its own
PARTS = 5  # parts into which signatures are divided; each part is held out once


class Sample(NamedTuple):
    """One signature as measured on one kind of device."""

    signature: str
    type: str
    flops: float
    bytes_accessed: float
    time_us: float


def fit(samples: Sequence[Sample]) -> dict[str, Fit]:
    """Return a fit for each op type, and one under ``"*"`` for all other types.

    Raises:
        ValueError: there is no sample at all.
    """
    if not samples:
        raise ValueError("a fit needs at least one measured op")
    fits = {OTHERS: _fit(samples)}
    for op_type in sorted({sample.type for sample in samples}):
        same_type = [sample for sample in samples if sample.type == op_type]
        fits[op_type] = _fit(same_type) if len(same_type) >= LEAST else _scaled(fits[OTHERS], same_type)
    return fits


def held_out(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the microseconds of each signature that a fit without it predicts.

    A fifth of the signatures, chosen by hash, is held out at a time. If all are in one fifth, none is predicted.
    """
    part = [int(sha256(sample.signature.encode()).hexdigest(), 16) % PARTS for sample in samples]
    predicted = {}
    for out in range(PARTS):
        known = [sample for sample, p in zip(samples, part, strict=True) if p != out]
        fits = fit(known) if known else {}
        for sample, p in zip(samples, part, strict=True):
            if p == out and fits:
                chosen = fits.get(sample.type, fits[OTHERS])
                predicted[sample.signature] = float(chosen.time_us(sample.flops, sample.bytes_accessed))
    return predicted


def _fit(samples: Sequence[Sample]) -> Fit:
    time = np.array([sample.time_us for sample in samples])
    terms = np.array([[1.0, sample.flops, sample.bytes_accessed] for sample in samples])
    scale = terms.max(axis=0)  # the solver needs columns of similar size
    scale[scale == 0] = 1.0
    solution = nnls(terms / scale / time[:, None], np.ones(len(time)))[0] / scale
    return Fit(*solution.tolist())


def _scaled(common: Fit, samples: Sequence[Sample]) -> Fit:
    """Return a fit times the factor with which it meets the samples, as a geometric mean."""
    logs = [np.log(sample.time_us / common.time_us(sample.flops, sample.bytes_accessed)) for sample in samples]
    factor = float(np.exp(np.mean(logs)))
    return Fit(*(factor * value for value in vars(common).values()))
