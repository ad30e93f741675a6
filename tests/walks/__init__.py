"""Long seeded walks of the pure machines beside models that are too simple to be wrong."""
