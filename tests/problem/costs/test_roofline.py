import numpy as np

from placeto.problem.cluster import load_cluster
from placeto.problem.costs import ROOFLINE
from placeto.problem.graph import ComputationGraph


def test_the_peak_is_that_of_the_dtype() -> None:
    ops = [{"name": dtype, "flops": 156e6, "dtype": dtype} for dtype in ("float32", "tf32", "bfloat16")]
    times = ROOFLINE.op_time_us(ComputationGraph.from_ops("g", ops), load_cluster("4xa100"))
    np.testing.assert_allclose(times[:, 0], [8.0, 1.0, 0.5])
