"""Names by key: the files of a run, the runs of a log, the streams of a job."""


class Groups(dict[str, tuple[str, ...]]):
    """Key -> its names in the order of arrival. Most keys have one name, for which a tuple is the smallest form."""

    def add(self, key: str, name: str) -> None:
        """Add a name to the key."""
        known = self.of(key)
        if name not in known:
            self[key] = (*known, name)

    def remove(self, key: str, name: str) -> None:
        """Remove a name from the key."""
        left = tuple(one for one in self.of(key) if one != name)
        if left:
            self[key] = left
        else:
            self.pop(key, None)

    def of(self, key: str) -> tuple[str, ...]:
        """Return the names of one key."""
        return self.get(key, ())
