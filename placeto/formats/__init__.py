"""Files of others, and files and pictures for others.

In come graphs that other programs wrote (PipeDream, dnn-partitioning, DOPPLER, Standard Task Graphs) and placement
files; out go placement files, Chrome traces, Gantt charts and reports. A format is a module here and a line in a table.
`gantt` is imported where a chart is drawn: matplotlib takes a second to load.
"""
