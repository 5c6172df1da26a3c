"""Pages as HTML files of their own."""
