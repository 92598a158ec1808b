import numpy as np

from placeto.simulator import kernel
from placeto.simulator.readings.timelines import first_after, timelines
from tests.cases import toy_problem
from tests.inner_kernels import from_python


def test_each_device_has_its_ops_by_start() -> None:
    random = np.random.default_rng(0)
    for problem in (toy_problem(seed, 20 + 10 * seed, 2 + seed) for seed in range(3)):
        flat = problem.arrays
        placement = random.integers(problem.num_devices, size=problem.num_ops)
        record = kernel.new_record(flat)
        _, num_sends = kernel.run(flat, placement, record, np.inf)
        ptr, line = np.empty(problem.num_devices + 1, np.int64), np.empty(problem.num_ops, np.int64)
        from_python(timelines)(flat, placement, record, num_sends, ptr, line)
        for device in range(problem.num_devices):
            own = line[ptr[device] : ptr[device + 1]]
            takes_time = (placement == device) & (problem.op_time[:, device] > 0.0)
            assert sorted(own) == np.flatnonzero(takes_time).tolist()
            assert (np.diff(record.start[own]) > 0.0).all()


def test_the_first_after_is_found_wherever_the_search_begins() -> None:
    start, line = np.array([0.0, 40.0, 10.0, 20.0, 30.0]), np.array([0, 2, 3, 4, 1])
    for ready, expected in ((-1.0, 1), (10.0, 2), (25.0, 3), (40.0, 5), (99.0, 5)):
        for cursor in range(1, 6):
            found = first_after(start, line, 1, 5, cursor, ready)
            assert found == expected or cursor > expected == found, (ready, cursor)
