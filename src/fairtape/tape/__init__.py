"""The released sequence as values, for the client, the web server and the ticker.

- `records`: trades, revisions, other messages and notices as values; what users see
- `batches`: many trades as columns, in NumPy and in Arrow
- `decoding`: entries of a journal and releases of a site as batches and records
- `serialization`: batches as bytes and records as JSON objects, between a server and a client
- `export`: the trades of a journal as a Parquet, CSV, DBN or ITCH file
- `feed`: the contract of a source of records
- `sales`: the last sale and the volume of every symbol, with cancels and corrections
- `ticker`: the replicated state machine over all symbols and venues
"""
