"""`demur ledger`: its commands, and the options of commands that charge one."""
