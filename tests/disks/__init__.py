"""Disks for tests: simulated, crashing, faulty and monitored ones behind the disk seam of `quiver_actors.store.disk.protocol`."""
