"""Updates as columns, files and batches."""
