"""What is placed, where, and at what cost.

Input: files, presets, arrays and captured models. Output: a `ComputationGraph` (`graph/`), a `Cluster` (`cluster/`),
and the two together with a cost model (`costs/`) as a `PlacementProblem`, whose flat arrays every kernel reads. This
package also decides which ops stay together (`grouping/`), and checks the fields of JSON files (`fields.py`,
`files.py`). Nothing here simulates: `placeto.simulator` does.
"""
