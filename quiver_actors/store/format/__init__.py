"""Describes structures as data: tables of fields, and the framing that guards a small file."""
