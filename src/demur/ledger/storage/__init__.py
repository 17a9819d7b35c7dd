"""Storage of a ledger: its tables, its header and its rows, on either kind of store."""
