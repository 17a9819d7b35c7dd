"""What a deletion service keeps: journal, records, snapshots, certificates, queue."""
