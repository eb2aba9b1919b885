"""Names by what they are of: the files of a run, the runs of a log, the streams of a job."""


class Groups(dict[str, tuple[str, ...]]):
    """Key -> its names, in the order in which they came; no key without one. Most have one: a tuple is the smallest."""

    def add(self, key: str, name: str) -> None:
        """It is one of them from now on."""
        known = self.of(key)
        if name not in known:
            self[key] = (*known, name)

    def remove(self, key: str, name: str) -> None:
        """It is none of them any more."""
        left = tuple(one for one in self.of(key) if one != name)
        if left:
            self[key] = left
        else:
            self.pop(key, None)

    def of(self, key: str) -> tuple[str, ...]:
        """The names of one key."""
        return self.get(key, ())
