"""What a placement costs: discrete-event simulation of time and memory.

In come a problem and placements; out goes a `Schedule`: what runs where and when, its makespan, peaks of memory and
slack. The kernels are compiled and may be called from other compiled code. An `Evaluator` counts what a search
simulates against its budget, and keeps the best.
"""
