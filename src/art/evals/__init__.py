"""Evaluation: means with confidence intervals."""
