"""The rules of a ledger: budgets, terms, the filter, and who is admitted under it."""
