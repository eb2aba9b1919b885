"""Which files can be logs: by name where a directory or a pattern found them, and by their first bytes."""

from __future__ import annotations

import re

_NEVER = re.compile(
    r"\.nfs[0-9a-fA-F]+$"  # a deleted file that some client still holds open on NFS
    r"|events\.out\.tfevents\."  # TensorBoard
    r"|.*\.(?:pt|pth|bin|safetensors|ckpt|distcp|idx|npy|npz|gz|bz2|xz|zst|lz4|zip|tar|tgz|7z|pkl|pickle|parquet|arrow"
    r"|feather|h5|hdf5|so|o|a|pyc|whl|png|jpe?g|gif|pdf|mp4|sqlite3?|db|nsys-rep|qdrep|swp|core)$",
    re.IGNORECASE,
)
_NOT_IN_A_TREE = re.compile(
    r".*\.(?:py|ipynb|c|cc|cpp|cu|cuh|h|hpp|json|jsonl|ya?ml|toml|ini|cfg|md|rst|html?|css|js|sh|bash|slurm|sbatch|csv|tsv"
    r"|lock|patch|diff|tex|model|vocab|merges)$",
    re.IGNORECASE,
)
_SKIPPED_DIRECTORIES = frozenset({".snapshot", "lost+found", "__pycache__", "node_modules", "site-packages"})
_CONTROL = bytes(set(range(1, 32)) - set(b"\a\b\t\n\v\f\r\x1b"))
_MAGIC = (b"\x1f\x8b", b"PK\x03\x04", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh", b"\x7fELF", b"\x93NUMPY", b"\x89HDF")


def may_be_log(name: str, *, in_tree: bool) -> bool:
    """`in_tree`: a directory was given, so everything below it is offered: source code and data are no logs."""
    return not (_NEVER.match(name) or (in_tree and _NOT_IN_A_TREE.match(name)))


def may_hold_logs(name: str) -> bool:
    """Directories worth a walk: none that hold programs. Hidden ones the pattern itself leaves out."""
    return name not in _SKIPPED_DIRECTORIES


def looks_binary(head: bytes) -> bool:
    """More than a 32nd of control characters that no terminal knows, or a known magic number. NULs are holes."""
    text = head.replace(b"\0", b"")
    if text.startswith(_MAGIC):
        return True
    return len(text) - len(text.translate(None, _CONTROL)) > len(text) // 32
