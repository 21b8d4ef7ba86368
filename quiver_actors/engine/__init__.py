"""One engine: one topic on one core. `Engine` is all that others use; each other module here owns one part of its state.

| module | what it owns |
|---|---|
| condition | whether it takes work |
| numbers | segment numbers, sequences, positions: none is ever used twice |
| log_queue | log files, from the spare to the one that waits for its seal |
| producers | which bundles idempotent producers have stored already |
| intake | pushes on their way into a log |
| group_commit | what is synced, and so may be acknowledged |
| progress | the subscribers' progress, and when it is flushed |
| shelf | sealed segments: which there are, which may be claimed, which can go |
| mending | damaged segments: check, rescue, what is lost |
| retention | what is kept and what goes; what is on the disk |
| stages, publishes | staged bundles; those that are becoming visible |
| parts | nothing: the above, put together |
| schedule, work | background jobs: which is next, who takes it back; the table of them |
| subscriber_side, storage_side | nothing: what subscribers, and the worker for the disk's sake, ask of an engine |
| engine | nothing: all of it together |
"""

from quiver_actors.engine.condition import EngineState
from quiver_actors.engine.engine import Engine

__all__ = ["Engine", "EngineState"]
