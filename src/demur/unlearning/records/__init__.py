"""What a deletion service stores: journal, records, snapshots, certificates, queue."""
