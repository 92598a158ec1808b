"""Which way to run a model on given devices: replicas, pipelines, or a free placement; see `placeto.planning.ways`."""
