"""Looks at stored files from outside, for people and programs: verify, inspect, repair, export.

Everything here works over the disk seam and tells what it finds as values; printing belongs to `quiver_actors.cli`. Looking never
locks, never writes, and never takes a damaged file for a reason to stop. Only `repair` changes what is stored.
"""
