"""The minimiser of the stated objective, with a certificate, in memory or streamed."""
