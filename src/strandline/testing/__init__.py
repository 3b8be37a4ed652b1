"""Shipped for writers of backends: conformance suites, and stores that count and fail on purpose.

The suites need pytest, which strandline does not install.
"""
