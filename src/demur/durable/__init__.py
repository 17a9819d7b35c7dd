"""What survives a crash: transactions, hash chain, keys, files that appear whole."""
