"""Node lists are read and written as Slurm reads and writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatron_monitor.nodes.hostlist import HostlistError, compress, expand, is_node_name
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


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["jpbo-034-40", *[f"jpbo-034-{n:02d}" for n in range(1, 39)]], "jpbo-034-[01-38,40]"),
        (["n9", "n10", "n09", "n100"], "n[09-10,100],n9"),
        (["ip-26-0-147-189", "ip-26-0-147-190"], "ip-26-0-147-[189-190]"),
        (["n1.cluster2.org", "n2.cluster2.org"], "n[1-2].cluster2.org"),
        (["10.0.0.1", "10.0.0.2", "login"], "10.0.0.1,10.0.0.2,login"),
        ([], ""),
    ],
)
def test_names_are_compressed(names: list[str], text: str) -> None:
    """The host's last number is put in ranges; addresses and names without one stand alone."""
    assert compress(names) == text


_NAMES = st.from_regex(r"[a-z]{1,3}(-?[0-9]{1,3}){0,3}[a-z]?(\.c[0-9])?", fullmatch=True).filter(is_node_name)


@given(st.sets(_NAMES, max_size=40))
def test_a_compressed_list_names_the_same_nodes(names: set[str]) -> None:
    """Whatever the zeros and the gaps."""
    assert set(expand(compress(names))) == names


@given(st.text(alphabet="abn[]-,0123456789", max_size=60))
def test_a_list_in_a_log_is_bounded(text: str) -> None:
    """Never raises, never more names than a machine has; what is no list gives none."""
    assert len(expand_some(text)) <= MOST
