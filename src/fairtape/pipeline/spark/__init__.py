"""Spark sessions and Delta tables.

- `java`: the Java that runs Spark, and the archive of its classes
- `session`: sessions, their settings, and errors of executors as user errors
- `delta`: Delta tables whose commits carry offsets
- `file_paths`: Parquet files by their exact names
"""
