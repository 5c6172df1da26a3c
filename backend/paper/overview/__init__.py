"""What people see of a session while it runs: how it stands, and its last report."""
