"""A ledger behind HTTP: its address, its calls, a mirror to read, a journal to write.

The noise is drawn here, in the process of the client, with keys that never leave it.
What a charge costs, and whether it fits, is decided by the service.
"""
