"""Reads an archive: which segments it has of a topic, and their bundles, of which only the wanted blocks are fetched."""
