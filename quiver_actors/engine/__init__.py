"""One engine: one topic on one core. `Engine` is all that others use; each other module here owns one part of its state.

condition        whether it takes work
numbers          segment numbers, sequences, positions: none is ever used twice
log_queue        log files, from the spare to the one that waits for its seal
intake           pushes on their way into a log
group_commit     what is synced, and so may be acknowledged
progress         the subscribers' progress, and when it is flushed
shelf            sealed segments: which there are, which may be claimed, which can go
mending          damaged segments: check, rescue, what is lost
schedule         background jobs: which is next, who takes it back
subscriber_side  what subscribers ask of an engine
engine           all of it together
"""

from quiver_actors.engine.condition import EngineState
from quiver_actors.engine.engine import Engine

__all__ = ["Engine", "EngineState"]
