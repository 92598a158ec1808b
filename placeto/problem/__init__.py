"""What is placed, where, and at what cost.

In come files, presets, arrays and captured models; out go a `ComputationGraph` (`graph/`), a `Cluster` (`cluster/`),
and the two together with a cost model (`costs/`) as a `PlacementProblem`, whose flat arrays every kernel reads. Which
ops stay together (`grouping/`) is decided here too, and everything that reads a JSON file checks its fields here
(`fields.py`, `files.py`). Nothing in this room knows of time passing.
"""
