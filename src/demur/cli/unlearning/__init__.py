"""`demur unlearn`: a deletion service, its certificates, and streams to try out."""
