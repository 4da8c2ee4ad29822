"""Spark sessions and Delta tables.

- `java`: the Java that runs Spark, and the archive of its classes
- `spark_session`: sessions, their settings, errors of executors as user errors, Parquet files by their exact names
- `delta`: Delta tables whose commits carry offsets
- `snapshots`: the Delta folder of each table, and its present rows
"""
