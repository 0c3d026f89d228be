"""Segments: one file of one table by one writer, open (`.arrows`) or sealed (`.parquet`)."""
