"""`params.yaml`: reading it with line and column, its blocks, and a sentence for whatever is wrong with it."""
