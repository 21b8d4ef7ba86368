"""Transactions: bundles that are staged durably and invisibly, and published together or not at all. See docs/transactions.md.

model       ids, tokens, decisions: plain values
decisions   the decision log: one file per decision, made once
"""

from quiver_actors.transactions.decisions import Decisions
from quiver_actors.transactions.model import Decision, Token

__all__ = ["Decision", "Decisions", "Token"]
