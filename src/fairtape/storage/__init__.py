"""Files and databases that are not the journal: formation stores, ledger tables, trade and trace files."""
