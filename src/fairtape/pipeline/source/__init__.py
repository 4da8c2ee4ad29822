"""The Spark data source `fairtape`: journals and replay ports as partitions, offsets and rows."""
