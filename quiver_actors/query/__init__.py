"""Owns questions to what is stored: conditions on rows, topics as Arrow datasets, and SQL over them.

A dataset is made of a snapshot that a client has taken (`client.snapshots`), and asks nobody anything afterwards.
"""
