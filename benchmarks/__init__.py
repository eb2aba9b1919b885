"""Programs that measure; each prints its figures and says how they were made."""
