"""Values as text: figures, tables, themes and layout."""
