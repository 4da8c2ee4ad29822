"""Tables of the pipeline: ingestion, functions from DataFrame to DataFrame, and the jobs that run them.

- `ingest`: journals and traces into tables, exactly once
- `jobs`: brings all tables up to date, once or as journals grow
- `order_tables`: the order, trades, notices, orders
- `market_tables`: sales, bars, averages, volumes
- `floor_tables`: events and executions of a trading floor
- `ring_tables`: releases, spreads, latency, clocks, formations; loss and delay of links, from traces
"""
