"""One worker process: its loop and sessions, its threads for the disk. It begins in `entry`, and lives in `loop`."""
