"""What others call things, as data: their words in YAML, with marks in which our values are put."""

from typing import Any


def filled(words: Any, **values: Any) -> Any:
    """The words with a value where `{its name}` stands alone."""
    if isinstance(words, dict):
        return {key: filled(item, **values) for key, item in words.items()}
    if isinstance(words, list):
        return [filled(item, **values) for item in words]
    return values.get(words[1:-1], words) if isinstance(words, str) and words[:1] == "{" else words
