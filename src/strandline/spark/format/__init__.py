"""The format "strandline" of Spark: tables for programs that can only name a format, read and written by Python
workers."""
