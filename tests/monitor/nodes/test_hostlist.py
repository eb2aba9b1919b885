"""Node lists are read and written as Slurm reads and writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.nodes.hostlist import HostlistError, expand
from megatron_monitor.run.nodes import MOST, expand_some


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu[001-003],login1", ["gpu001", "gpu002", "gpu003", "login1"]),
        ("jpbo-034-[08-10,40]", ["jpbo-034-08", "jpbo-034-09", "jpbo-034-10", "jpbo-034-40"]),
        ("r[1-2]n[9-10]-ib", ["r1n9-ib", "r1n10-ib", "r2n9-ib", "r2n10-ib"]),
        ("n[98-101]", ["n98", "n99", "n100", "n101"]),
        (" n1, n2\tn1,,", ["n1", "n2"]),
        ("", []),
    ],
)
def test_a_list_is_expanded_as_slurm_does(text: str, names: list[str]) -> None:
    """Zeros give the width, several brackets multiply, a name counts once."""
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("n[1-99999999]", "more than 65536"),
        ("n[1-300]m[1-300]", "more than 65536"),
        ("n[3-1]", "backwards"),
        ("n[1-2", "is not part of"),
        ("n[]", "neither a number nor a range"),
        ("n[a-b]", "neither a number nor a range"),
        ("n1;reboot", "is not a node name"),
        ("-w", "is not a node name"),
        ("$(id)", "is not a node name"),
    ],
)
def test_what_is_no_list_is_refused(text: str, says: str) -> None:
    """A log's text is no node list until it reads as one; an option or a shell's word never does."""
    with pytest.raises(HostlistError, match=says):
        expand(text)


@given(st.text(alphabet="abn[]-,0123456789", max_size=60))
def test_a_list_in_a_log_is_bounded(text: str) -> None:
    """Never raises, never more names than a machine has; what is no list gives none."""
    assert len(expand_some(text)) <= MOST
