"""The one seam to the file system: `protocol`, and the real, simulated, faulty and watched disks behind it."""
