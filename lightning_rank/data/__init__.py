"""Sources of ranked lists: files, generators, and how they become batches."""
