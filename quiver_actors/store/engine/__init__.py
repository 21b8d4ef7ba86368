"""One engine: one topic on one core. `Engine` is all that others use; each other module here owns one part of its state.

| module | what it owns |
|---|---|
| condition | whether it takes work |
| numbers | segment numbers, sequences, positions: none is ever used twice |
| log_queue, spare_log | log files, up to the one that waits for its seal; the one that stands ready |
| producers | which bundles idempotent producers have stored already |
| intake | pushes on their way into a log |
| group_commit | what is synced, and so may be acknowledged |
| progress | the subscribers' progress, and when it is flushed |
| sealed_segments, deletions | the sealed segments: which there are, which may be claimed; which go |
| repair, faults, quarantine | damaged segments: check, rescue, what is lost; what cannot be looked at now; what is moved aside |
| retention | what is kept and what goes |
| disk_account | what is on the disk |
| stages, publishes | staged bundles; those that are becoming visible |
| parts | nothing: the above, put together |
| schedule, work | background jobs: which is next, who takes it back; the table of them |
| registrations, claims, owed | nothing: what subscribers and their consumers ask of an engine |
| storage | nothing: what the worker asks for the disk's sake |
| engine | nothing: all of it together |
"""

from quiver_actors.store.engine.condition import EngineState
from quiver_actors.store.engine.engine import Engine

__all__ = ["Engine", "EngineState"]
