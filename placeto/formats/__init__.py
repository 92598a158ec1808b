"""Files of other programs, and files and pictures for them.

Input: graphs that other programs wrote (PipeDream, dnn-partitioning, DOPPLER, Standard Task Graphs), and placement
files. Output: placement files, Chrome traces, Gantt charts, exports and reports. A format is a module here and a line
in a table. `gantt` is only imported where a chart is drawn, because matplotlib takes a second to load.
"""
