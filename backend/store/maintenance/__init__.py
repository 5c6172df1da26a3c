"""What keeps a store small and safe: verified copies, backup and compaction."""
