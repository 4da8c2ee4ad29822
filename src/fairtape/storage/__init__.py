"""Files and databases other than the journal.

- `formation_stores`: leader election and the log of formations, in SQLite or etcd
- `database`: opens SQLite or PostgreSQL through SQLAlchemy
- `ledger_tables`: the ledger of a floor as tables
- `trade_files`: trades in CSV, Parquet, DBN and ITCH files
- `trace_files`: records of every token for the analysis of links
- `incarnations`: numbers that rise at each start of a node
- `files`: atomic replacement of small files, and lock files
"""
