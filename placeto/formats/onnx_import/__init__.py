"""The importer of ONNX models: checks, shapes and costs, computed in a process of its own."""

__all__: list[str] = []
