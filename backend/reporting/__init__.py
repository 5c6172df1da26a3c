"""What people read: the report, its tables and charts, and decisions in sentences."""
