"""Kernels read named tuples of many arrays by reference, and Python gets them back as they were."""

from typing import NamedTuple

import numpy as np
import pytest
from numba import njit, typeof

from placeto.plumbing.by_reference import Reference, reference
from tests.toys import fork_of_chains, two_cliques


class Dozen(NamedTuple):
    """As many fields as make it a reference."""

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray
    d: np.ndarray
    e: np.ndarray
    f: np.ndarray
    g: np.ndarray
    h: np.ndarray
    i: np.ndarray
    j: np.ndarray
    k: np.ndarray
    number: float


Dozen.__module__ = "placeto.dozen"  # as if the package had it


@njit
def given_back(dozen: Dozen) -> tuple[Dozen, float]:
    return dozen, dozen.a[0] + dozen.k[0] + dozen.number


@njit
def made(start: np.ndarray, count: int) -> Dozen:
    """The sum of `count` of them, each made of the one before, which is then forgotten."""
    x = start
    last = reference(Dozen(x, x, x, x, x, x, x, x, x, x, x, 0.0))
    for _ in range(count):
        y = last.k + last.a
        last = reference(Dozen(y, x, x, x, x, x, x, x, x, x, last.k + 1.0, last.number + y[0]))
    return last


def dozen() -> Dozen:
    return Dozen(*(np.full(3, float(field)) for field in range(11)), 0.5)


def test_problems_are_references_of_one_type() -> None:
    one, other = typeof(fork_of_chains(2, 3).arrays), typeof(two_cliques().arrays)
    assert isinstance(one, Reference)
    assert one is other


def test_python_gets_back_what_it_gave() -> None:
    given = dozen()
    back, total = given_back(given)
    assert type(back) is Dozen
    assert total == 0.0 + 10.0 + 0.5
    assert all(np.shares_memory(one, other) for one, other in zip(back[:-1], given[:-1], strict=True))


def test_what_a_kernel_makes_lives_as_long_as_its_reference() -> None:
    last = made(np.ones(3), 4)  # k is 1, 2, 3, ...; a is 1 + 1, 2 + 2, 4 + 3, 7 + 4
    assert last.k.tolist() == [5.0] * 3
    assert last.a.tolist() == [11.0] * 3
    assert last.number == 2.0 + 4.0 + 7.0 + 11.0


def test_a_field_that_isnt_there_is_an_error_of_the_kernel() -> None:
    with pytest.raises(Exception, match="Unknown attribute 'z'"):
        njit(lambda tuple_: tuple_.z)(dozen())
