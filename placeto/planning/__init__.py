"""Which way to run a model on given devices: see `placeto.planning.ways.plan`."""
