"""The Spark data source `fairtape`: journals and replay ports as partitions, offsets and rows.

- `data_source`: the source and its readers over journals
- `options`: its options
- `partitions`: journals as partitions, and how far each can be read
- `journal_rows`: the entries of an offset range as Arrow batches
- `replay_source`: a replay port as a source, with the client of the port
"""
