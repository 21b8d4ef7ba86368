"""Opens one engine's directory, and finishes or repairs everything that a crash can leave before the engine takes work.

| module | what it owns |
|---|---|
| findings | what was moved aside, and what an operator should know |
| numbers | which numbers have been used: the engine goes on behind them |
| found_segments | sealed segments: which are there, which are damaged |
| subscribers | progress and gap notices |
| producers | what idempotent producers have stored |
| logs | log files of ours: sealed, or their seals finished |
| adoption | log files of other writers: their entries go into logs of ours |
| cold | the list of cold segments |
| recovery | all of it, in order |
| start | the same, with a second try on a full disk |
| recovered | what an engine starts from |
"""

from quiver_actors.store.recovery.adoption import realign_entry
from quiver_actors.store.recovery.recovered import Recovered
from quiver_actors.store.recovery.recovery import Recovery
from quiver_actors.store.recovery.start import recover

__all__ = ["Recovered", "Recovery", "realign_entry", "recover"]
