"""Other libraries' own spellings, over demur's engines."""
