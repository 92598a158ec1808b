"""Which way to run a model on given devices: replicas, pipelines, or a free placement of ops.

In comes a step in several numbers of micro-batches, and a cluster; out go ways to run it, best first, or what it takes
to fit one device.
"""
