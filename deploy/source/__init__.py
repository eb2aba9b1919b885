"""Prometheus rules, and what is made of them, as code. `python -m deploy.source` writes the files; a test holds them
equal to what is committed.
"""
