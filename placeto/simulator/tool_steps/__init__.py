"""The steps that tools run: replicas, ZeRO, pipelines and whole modules, as graphs like any other."""

__all__: list[str] = []
