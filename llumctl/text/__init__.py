"""What commands print: tables, lines and progress."""
