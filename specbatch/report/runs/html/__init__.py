"""Reports as pages: one file each, which asks nobody for anything."""
