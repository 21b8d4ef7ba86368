"""One worker process: the loop and its sessions, the threads for the disk, and what it does for its topics. It begins in `entry`, and lives in `loop`."""
