"""Twins for the processor: blocks of rows that stay in its cache, on several threads, in memory that is there already."""
