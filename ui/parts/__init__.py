"""What the pages draw: blocks of a report, decisions."""
