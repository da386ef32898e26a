"""What the front speaks to: one module for each database, and what all of them offer."""
