"""What people read: the report, its tables and charts, and a decision told in sentences."""
