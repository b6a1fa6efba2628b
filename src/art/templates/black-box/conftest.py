"""Makes this folder's modules importable for the tests."""
