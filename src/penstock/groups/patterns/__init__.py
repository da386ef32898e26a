"""What is computed of groups, by how it reads their rows: sums over all of them, one after another, or samples of them."""
