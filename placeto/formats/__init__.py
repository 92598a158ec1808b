"""Files of other programs, and files and pictures for them.

Input: graphs that other programs wrote (PipeDream, dnn-partitioning, DOPPLER, ONNX, Standard Task Graphs), clusters
that nvidia-smi describes, and placement and plan files. Output: placement and plan files, Chrome traces, Gantt charts,
exports and reports. Each format has a module here and a line in a table. `gantt` is only imported where a chart is
drawn, because matplotlib takes a second to load.
"""

__all__: list[str] = []
